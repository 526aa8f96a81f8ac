# Installs the project and passes variables on to lra-fnet. `make` alone shows the targets.
PYTHON ?= python3
VENV ?= .venv
TASK ?=
MODEL ?=
MODELS ?= transformer,linear,fnet,performer
PRESET ?= paper
SEED ?= 0
SEEDS ?= 1
GIN ?=
GRID ?=
RANGE ?=
NAME =# not from the environment, where some systems name the host so
RUNS ?= runs
DATA ?= data
SOURCE ?=
DATASET ?=
IMPORT ?=
GIN_DIR ?=
ACCELERATOR ?=
FORCE ?=
PRETRAIN ?=
SWEEP ?=
SAMPLER ?=
TRIALS ?=
JOBS ?= 1
PRUNE ?=
RETRY ?=
WITHOUT_FAILED ?=
LENGTHS ?=
WHAT ?=
CLS ?=
TOKENS ?=
ROUNDS ?= 5
A ?=
B ?=
JSON ?=
README ?=
comma := ,

bin = $(call quote,$(VENV)/bin/$(1))
FNET = $(call bin,lra-fnet)
install = @launch/install.sh $(call quote,$(VENV)) $(call quote,$(PYTHON)) '$(1)$(pieces)'
# Tasks of pieces need SentencePiece.
pieces = $(if $(filter corpus,$(TASK))$(filter %-pretrain,$(PRESET))$(findstring pieces_,$(DATASET)$(GIN)),$(comma)corpus)
quote = '$(subst ','\'',$(1))'# one word for the shell, whatever it contains
pytest = $(call bin,pytest) -q -n 2 --dist loadfile --no-loadscope-reorder# a file's tests share fixtures
option = $(if $(2),--$(1) $(call quote,$(2)))
on = $(filter-out 0 no false,$(1))# a switch
is_set = $(filter-out file undefined,$(origin $(1)))# by the user
# --name 'value' if the user set the variable; otherwise the value in the sweep's file holds.
given = $(if $(call is_set,$(2)),$(call option,$(1),$($(2))))
source = --data $(call quote,$(DATA)) $(call option,source,$(SOURCE))
outside = $(foreach module,$(IMPORT),$(call option,import,$(module))) $(foreach folder,$(GIN_DIR),$(call option,gin-dir,$(folder)))
set = $(if $(DATASET),--set $(call quote,DATASET=$(DATASET)))
job = --task $(call quote,$(TASK)) --preset $(call quote,$(PRESET)) $(set) --gin $(call quote,$(GIN)) $(source) $(outside)
count = $(or $(shell { seq 0 "$$(expr $(call quote,$(1)) - 1)"; } 2>/dev/null),$(error SEEDS expects a whole number of at least 1, got $(1)))
typed = $(filter command,$(origin $(1)))# on the command line, not in the environment
seeds = $(if $(call typed,SEED),$(SEED),$(if $(call is_set,SEEDS),$(call count,$(SEEDS)),$(SEED)))
models = $(if $(call typed,MODELS),MODELS,$(if $(MODEL),MODEL,MODELS))# the variable that names them

# The variables that the command line may set for each target: another one would have no effect.
outside.takes := DATA SOURCE IMPORT GIN_DIR
lra.takes := $(outside.takes) TASK DATASET PRESET GIN RUNS MODEL SEED SEEDS NAME ACCELERATOR FORCE PRETRAIN
data.takes := $(outside.takes) TASK DATASET FORCE
describe.takes := TASK DATA IMPORT GIN_DIR
settings.takes := $(outside.takes) TASK DATASET PRESET GIN MODEL PRETRAIN
sweep.takes := $(outside.takes) TASK DATASET PRESET GIN RUNS MODEL MODELS SEEDS NAME ACCELERATOR SWEEP \
	GRID RANGE SAMPLER TRIALS JOBS PRUNE RETRY PRETRAIN
finish.takes := NAME RUNS WITHOUT_FAILED
drill.takes := SEED JOBS
report.takes := RUNS README
compare.takes := A B JSON RUNS
benchmark.takes := IMPORT GIN_DIR TASK DATASET PRESET GIN MODEL MODELS ACCELERATOR LENGTHS WHAT CLS \
	TOKENS ROUNDS NAME RUNS
takes := $(sort $(foreach goal,$(MAKECMDGOALS),$($(goal).takes)))
on_line := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
unknown := $(filter-out $(takes) PYTHON VENV SHELL,$(on_line))
ifneq ($(and $(filter sweep benchmark,$(MAKECMDGOALS)),$(filter MODEL,$(on_line)),$(filter MODELS,$(on_line))),)
$(error make $(MAKECMDGOALS) takes MODEL or MODELS, got both)
endif
ifneq ($(and $(filter lra,$(MAKECMDGOALS)),$(filter SEED,$(on_line)),$(filter SEEDS,$(on_line))),)
$(error make lra takes SEED or SEEDS, got both)
endif
ifneq ($(and $(MAKECMDGOALS),$(unknown)),)
$(error make $(MAKECMDGOALS) does not take $(sort $(unknown)); it takes $(strip $(takes) PYTHON VENV))
endif

.PHONY: help lra data describe settings sweep finish report compare benchmark drill test test-all coverage peers slurm-test clean

help:
	@echo 'make lra TASK=listops MODEL=fnet PRESET=cpu'
	@echo '    Prepares the data, trains or resumes, evaluates and prints the result.'
	@echo '    PRESET=paper|lra-code|tuned|small|cpu  SEED=0|SEEDS=3  FORCE=1 (train again)'
	@echo '    TASK=csv SOURCE=mine.csv (your own table)  TASK=images SOURCE=folder'
	@echo '    DATASET=name (another set of the task, such as one for a second table)'
	@echo '    TASK=corpus: lra-fnet pretrain --preset paper-pretrain|cpu-pretrain'
	@echo '    GIN="Run.num_steps=100 Encoder.num_layers=2"  NAME=word (names them)'
	@echo '    PRETRAIN=1 (first on masked tokens of its own rows, for half of the steps)'
	@echo '    ACCELERATOR=cuda (install for GPUs)'
	@echo '    IMPORT=examples/my_mixer.py GIN_DIR=examples/gin (your own code)'
	@echo 'make data TASK=text|all'
	@echo '    Prepares and verifies data.  DATASET=  SOURCE=folder|file|URL  FORCE=1'
	@echo 'make describe'
	@echo '    Describes the prepared data: rows, lengths, floors, sizes, licences.'
	@echo 'make settings TASK=text MODEL=fnet PRESET=cpu'
	@echo '    Shows every setting of such a run and the file and line that bind it.  GIN='
	@echo 'make sweep TASK=listops MODELS=fnet,linear PRESET=cpu SEEDS=3'
	@echo '    Trains several models.  SWEEP=lra_table|FILE  JOBS=2  RETRY=1'
	@echo '    GRID="Run.batch_size=[16,32]"  SAMPLER=random|tpe  TRIALS=20  PRUNE=1'
	@echo '    RANGE="Optimizer.learning_rate=[1e-4,1e-2,\"log\"]"'
	@echo 'make finish NAME=name-of-the-sweep  WITHOUT_FAILED=1'
	@echo '    Selects on validation and scores the selected runs on test.'
	@echo 'make report'
	@echo '    Writes tables and figures of runs/ and results/ to reports/.  README=1'
	@echo 'make compare A=cpu/listops/fnet B=cpu/listops/transformer'
	@echo '    Compares two models or runs, with a significance test.  JSON=1'
	@echo 'make benchmark TASK=text MODELS=fnet,transformer PRESET=cpu LENGTHS=512,1024'
	@echo '    Measures speed and memory.'
	@echo '    WHAT=train,pretrain,infer,mixing  CLS=1'
	@echo '    TOKENS=16384 (per batch)  ROUNDS=5'
	@echo 'make drill SEED=1'
	@echo '    Runs every command under injected faults and checks the results (Linux).'
	@echo 'make test | test-all'
	@echo '    Format, lint, types, tests; test leaves out the slow tests.'
	@echo 'make coverage'
	@echo '    Tests again, with the share of lines and branches that they reach.'
	@echo 'make peers | slurm-test'
	@echo '    Tests against PyTorch encoders | on a real SLURM of one node (root).'
	@echo 'make clean'
	@echo '    Removes the environment, caches, reports and builds; keeps runs and data.'
	@echo 'Everywhere: PYTHON=python3  VENV=.venv; where used: RUNS=runs  DATA=data'

define train
@$(FNET) $(2) $(job) --model $(call quote,$(MODEL)) --seed $(call quote,$(1)) \
	--name $(call quote,$(NAME)) --runs $(call quote,$(RUNS)) $(if $(call on,$(FORCE)),--force)

endef

# Says what runs without PRESET, unless a sweep's file or plan decides.
long = $(if $(call is_set,PRESET)$(SWEEP),,$(if $(TASK),@echo >&2 \
	'no PRESET: this is PRESET=paper$(comma) hours to days without an accelerator; PRESET=cpu takes minutes'))

lra:
	$(long)
	$(call install,$(ACCELERATOR))
	$(foreach seed,$(seeds),$(if $(call on,$(PRETRAIN)),$(call train,$(seed),pretrain)$(call train,$(seed),train --init auto),$(call train,$(seed),train)))

data:
	$(call install,)
	@$(FNET) data --task $(call quote,$(TASK)) --dataset $(call quote,$(DATASET)) $(source) $(outside) \
		$(if $(call on,$(FORCE)),--force)

describe:
	$(call install,)
	@$(FNET) describe --task $(call quote,$(or $(TASK),all)) --data $(call quote,$(DATA)) $(outside)

settings:
	$(call install,)
	@$(FNET) settings $(job) --model $(call quote,$(MODEL)) $(if $(call on,$(PRETRAIN)),--pretrain)

sweep:
	$(long)
	$(call install,$(ACCELERATOR))
	@$(FNET) sweep $(call given,sweep,SWEEP) $(call given,task,TASK) \
		$(call given,models,$(models)) $(call given,preset,PRESET) \
		$(call given,seeds,SEEDS) $(call given,sampler,SAMPLER) $(call given,trials,TRIALS) \
		$(call given,name,NAME) $(set) --gin $(call quote,$(GIN)) --grids $(call quote,$(GRID)) \
		--ranges $(call quote,$(RANGE)) --jobs $(call quote,$(JOBS)) $(if $(call on,$(PRUNE)),--prune) $(if $(call on,$(PRETRAIN)),--pretrain) \
		$(if $(call on,$(RETRY)),--retry) --runs $(call quote,$(RUNS)) $(source) $(outside)

finish:
	$(call install,)
	@$(FNET) finish --name $(call quote,$(NAME)) --runs $(call quote,$(RUNS)) $(if $(call on,$(WITHOUT_FAILED)),--without-failed)

report:
	$(call install,)
	@$(FNET) report --runs $(call quote,$(RUNS)) $(if $(call on,$(README)),--readme README.md)

compare:
	$(call install,)
	@$(FNET) compare $(call quote,$(A)) $(call quote,$(B)) --runs $(call quote,$(RUNS)) $(if $(call on,$(JSON)),--json)

benchmark:
	$(long)
	$(call install,$(ACCELERATOR))
	@$(FNET) benchmark \
		--task $(call quote,$(TASK)) --preset $(call quote,$(PRESET)) $(set) --gin $(call quote,$(GIN)) $(outside) --models $(call quote,$($(models))) --lengths $(call quote,$(LENGTHS)) \
		--what $(call quote,$(WHAT)) --rounds $(call quote,$(ROUNDS)) $(call option,tokens,$(TOKENS)) \
		--runs $(call quote,$(RUNS)) $(call given,name,NAME) $(if $(call on,$(CLS)),--cls)

drill:
	$(call install,)
	@$(call bin,python) -m tools.drill $(call given,seed,SEED) $(call given,jobs,JOBS)

test test-all:
	$(call install,tf$(comma)dev$(comma)slurm$(comma)corpus)
	@$(call bin,ruff) format --check .
	@$(call bin,ruff) check .
	@$(call bin,pyright) --pythonpath $(call bin,python)
	@$(pytest) $(if $(filter test,$@),-m 'not slow')

coverage:
	$(call install,tf$(comma)dev$(comma)slurm$(comma)corpus)
	@$(pytest) --cov

peers:
	@launch/install.sh $(call quote,$(VENV)-peers) $(call quote,$(PYTHON)) dev,peers
	@$(call quote,$(VENV)-peers/bin/pytest) -q tests/peers

slurm-test:
	$(call install,slurm$(comma)dev)
	@tests/slurm/install.sh
	@$(call bin,pytest) -q tests/slurm/jobs.py

clean:
	rm -rf $(call quote,$(VENV)) $(foreach end,.lock -peers -peers.lock,$(call quote,$(VENV)$(end))) .pytest_cache .ruff_cache reports build dist *.egg-info
	find lra_fnet tests examples -name __pycache__ -prune -exec rm -rf {} +
