# Installs the project and hands variables on to lra-fnet. `make` alone shows the targets.
PYTHON ?= python3
VENV ?= .venv
# Each of these, given on the command line, is an option of lra-fnet, which refuses what it does not take.
TASK =
MODEL =
MODELS =
PRESET =
SEED =
SEEDS =
GIN =
GRID =
NAME =
RUNS =
DATA =
SOURCE =
DATASET =
IMPORT =
GIN_DIR =
FORCE =
ARGS =# further words of the command, as they are
ACCELERATOR =# cuda installs for GPUs
comma := ,

fnet = $(call bin,lra-fnet)
bin = $(call quote,$(VENV)/bin/$(1))
quote = '$(subst ','\'',$(1))'# one word for the shell, whatever it contains
option = $(if $(2),--$(1) $(call quote,$(2)))
each = $(foreach word,$(2),$(call option,$(1),$(word)))
on = $(filter-out 0 no false,$(1))# a switch
install = @launch/install.sh $(call quote,$(VENV)) $(call quote,$(PYTHON)) '$(1)$(pieces)'
# Tasks of pieces need SentencePiece.
pieces = $(if $(filter corpus,$(TASK))$(filter %-pretrain,$(PRESET))$(findstring pieces_,$(DATASET)$(GIN)),$(comma)corpus)
pytest = $(call bin,pytest) -q -n 2 --dist loadfile --no-loadscope-reorder# a file's tests share fixtures
words = $(call option,task,$(TASK)) $(call option,model,$(MODEL)) $(call option,models,$(MODELS)) \
	$(call option,preset,$(PRESET)) $(call option,seed,$(SEED)) $(call option,seeds,$(SEEDS)) \
	$(if $(DATASET),$(if $(filter data,$@),--dataset $(call quote,$(DATASET)),--set $(call quote,DATASET=$(DATASET)))) \
	$(call option,gin,$(GIN)) $(call option,grids,$(GRID)) $(call option,name,$(NAME)) \
	$(call option,runs,$(RUNS)) $(call option,data,$(DATA)) $(call option,source,$(SOURCE)) \
	$(call each,import,$(IMPORT)) $(call each,gin-dir,$(GIN_DIR)) $(if $(call on,$(FORCE)),--force) $(ARGS)
# Says what runs without PRESET, unless a sweep's file or plan decides.
long = $(if $(PRESET),,$(if $(TASK),$(if $(filter lra pretrain sweep benchmark,$@),@echo >&2 \
	'no PRESET: this is PRESET=paper$(comma) hours to days without an accelerator; PRESET=cpu takes minutes')))

names := TASK MODEL MODELS PRESET SEED SEEDS GIN GRID NAME RUNS DATA SOURCE DATASET IMPORT GIN_DIR FORCE ARGS \
	ACCELERATOR PYTHON VENV
unknown := $(filter-out $(names) SHELL,$(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name))))
ifneq ($(unknown),)
$(error make does not take $(sort $(unknown)); it takes $(names), and other options as ARGS="--option value")
endif

.PHONY: help lra pretrain data describe settings sweep finish report compare benchmark documents drill test test-all coverage peers slurm-test clean

help:
	@echo 'make lra TASK=listops MODEL=fnet PRESET=cpu'
	@echo '    Prepares the data, trains or resumes, evaluates and prints the result.'
	@echo '    PRESET=paper|lra-code|tuned|small|cpu  SEED=0  FORCE=1 (train again)'
	@echo '    GIN="Run.num_steps=100 Encoder.num_layers=2"  NAME=word (names them)'
	@echo '    TASK=csv SOURCE=mine.csv (your own table)  TASK=images SOURCE=folder'
	@echo '    IMPORT=examples/my_mixer.py GIN_DIR=examples/gin (your own code)'
	@echo '    ACCELERATOR=cuda (installs for GPUs)'
	@echo 'make pretrain TASK=image MODEL=fnet PRESET=cpu'
	@echo '    Trains on masked tokens; make lra ... ARGS="--init auto" goes on from it.'
	@echo '    TASK=corpus PRESET=paper-pretrain|cpu-pretrain'
	@echo 'make sweep TASK=listops MODELS=fnet,linear PRESET=cpu SEEDS=3'
	@echo '    Trains several models.  GRID="Run.batch_size=[16,32]"  ARGS="--jobs 2"'
	@echo '    ARGS="--sweep lra_table"  NAME=word (make sweep NAME=word resumes it)'
	@echo 'make finish NAME=word'
	@echo '    Selects on validation and scores the selected runs on test.'
	@echo 'make report'
	@echo '    Writes tables and figures of runs/ and results/ to reports/.'
	@echo 'make compare ARGS="cpu/listops/fnet cpu/listops/transformer"'
	@echo '    Compares two models or runs, with a significance test.'
	@echo 'make benchmark TASK=text MODELS=fnet,linear PRESET=cpu ARGS="--lengths 512,1024"'
	@echo '    Measures speed and memory.'
	@echo 'make data TASK=text|all, make describe, make settings TASK=text MODEL=fnet'
	@echo '    Prepares data; describes it; shows every setting and what binds it.'
	@echo 'make test | test-all | coverage | peers | slurm-test | drill | documents'
	@echo '    Format, lint, types, tests; with slow ones; against PyTorch; a real SLURM;'
	@echo '    injected faults; writes the generated parts of the documents.'
	@echo 'make clean'
	@echo '    Removes the environment, caches, reports and builds; keeps runs and data.'
	@echo 'ARGS="--option value" adds any option of .venv/bin/lra-fnet COMMAND --help.'
	@echo 'Everywhere: PYTHON=python3  VENV=.venv; where used: RUNS=runs  DATA=data'

lra pretrain data describe settings sweep finish report compare benchmark:
	$(long)
	$(call install,$(ACCELERATOR))
	@$(fnet) $(if $(filter lra,$@),train,$@) $(words)

documents drill:
	$(call install,)
	@$(call bin,python) -m tools.$@ $(ARGS)

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
