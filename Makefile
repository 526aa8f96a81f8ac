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
NAME ?=
RUNS ?= runs
DATA ?= data
SOURCE ?=
DATASET ?=
IMPORT ?=
GIN_DIR ?=
ACCELERATOR ?=
FORCE ?=
FIT ?=
SWEEP ?=
SAMPLER ?=
TRIALS ?=
JOBS ?= 1
PRUNE ?=
RETRY ?=
LENGTHS ?=
WHAT ?=
CLS ?=
TOKENS ?=
PEER ?=
ROUNDS ?= 5
A ?=
B ?=
JSON ?=
comma := ,
export GIN GRID RANGE

FNET = $(VENV)/bin/lra-fnet
install = @launch/install.sh '$(VENV)' '$(PYTHON)' '$(1)'
source = $(if $(SOURCE),--source '$(SOURCE)')
# --name 'value' if the user set the variable; otherwise the value in the sweep's file holds.
given = $(if $(filter-out file undefined,$(origin $(2))),$(if $($(2)),--$(1) '$($(2))'))
outside = $(foreach module,$(IMPORT),--import '$(module)') $(foreach folder,$(GIN_DIR),--gin-dir '$(folder)')

.PHONY: help lra data describe sweep finish report compare benchmark drill test check peers slurm-test clean

help:
	@echo 'make lra TASK=listops MODEL=fnet PRESET=cpu'
	@echo '    Prepares the data, trains or resumes, evaluates and prints the result.'
	@echo '    PRESET=paper|lra-code|tuned|cpu  SEED=0  FORCE=1 (train again)'
	@echo '    GIN="Run.num_steps=100 Encoder.num_layers=2"  NAME=name-of-the-bindings'
	@echo '    FIT=1 (slices that fit the memory)  ACCELERATOR=cuda (install for GPUs)'
	@echo '    IMPORT=examples/my_mixer.py GIN_DIR=examples/gin (your own code)'
	@echo 'make data TASK=text|all'
	@echo '    Prepares and verifies data.  DATASET=  SOURCE=folder|file|URL'
	@echo 'make describe'
	@echo '    Describes the prepared data: rows, lengths, floors, sizes, licences.'
	@echo 'make sweep TASK=listops MODELS=fnet,linear SEEDS=3'
	@echo '    Trains several models.  SWEEP=gin/sweeps/lra_table.gin  JOBS=2  RETRY=1'
	@echo '    GRID="Run.batch_size=[16,32]"  SAMPLER=random|tpe  TRIALS=20  PRUNE=1'
	@echo '    RANGE="Optimizer.learning_rate=[1e-4,1e-2,\"log\"]"'
	@echo 'make finish NAME=name-of-the-sweep'
	@echo '    Selects on validation and scores the selected runs on test.'
	@echo 'make report'
	@echo '    Writes tables and figures of runs/ and results/ to reports/.'
	@echo 'make compare A=cpu/listops/fnet B=cpu/listops/transformer'
	@echo '    Compares two models or runs, with a significance test.  JSON=1'
	@echo 'make benchmark TASK=text MODELS=fnet,transformer LENGTHS=512,1024'
	@echo '    Measures speed and memory; without LENGTHS, the training loop.'
	@echo '    WHAT=train,infer,memory,mixing,scaling,pipeline  CLS=1 (L + 1 too)'
	@echo '    TOKENS=16384 (per batch)  ROUNDS=5  PEER=1 (PyTorch too)'
	@echo 'make drill SEED=1'
	@echo '    Strikes every command with faults and checks the results (Linux).'
	@echo 'make test | check'
	@echo '    Format, lint, types, tests; check leaves out the slow tests.'
	@echo 'make peers | slurm-test'
	@echo '    Tests against PyTorch encoders | on a real SLURM of one node (root).'
	@echo 'make clean'
	@echo '    Removes the environment and caches; keeps runs and data.'
	@echo 'Everywhere: RUNS=runs  DATA=data  PYTHON=python3  VENV=.venv'

lra:
	$(call install,$(ACCELERATOR))
	@$(FNET) train --task '$(TASK)' --model '$(MODEL)' --preset '$(PRESET)' --seed '$(SEED)' \
		--gin "$$GIN" --name '$(NAME)' --runs '$(RUNS)' --data '$(DATA)' $(source) $(outside) \
		$(if $(FORCE),--force) $(if $(FIT),--fit)

data:
	$(call install,)
	@$(FNET) data --task '$(TASK)' --dataset '$(DATASET)' --data '$(DATA)' $(source) $(outside)

describe:
	$(call install,)
	@$(FNET) describe --task '$(or $(TASK),all)' --data '$(DATA)' $(outside)

sweep:
	$(call install,$(ACCELERATOR))
	@$(FNET) sweep $(call given,sweep,SWEEP) $(call given,task,TASK) $(call given,models,MODELS) \
		$(call given,preset,PRESET) $(call given,seeds,SEEDS) $(call given,sampler,SAMPLER) \
		$(call given,trials,TRIALS) $(call given,name,NAME) --gin "$$GIN" --grids "$$GRID" \
		--ranges "$$RANGE" --jobs '$(JOBS)' $(if $(PRUNE),--prune) $(if $(RETRY),--retry) \
		--runs '$(RUNS)' --data '$(DATA)' $(source) $(outside)

finish:
	$(call install,)
	@$(FNET) finish --name '$(NAME)' --runs '$(RUNS)'

report:
	$(call install,)
	@$(FNET) report --runs '$(RUNS)' --readme README.md

compare:
	$(call install,)
	@$(FNET) compare '$(A)' '$(B)' --runs '$(RUNS)' $(if $(JSON),--json)

benchmark:
	$(call install,$(ACCELERATOR))
	$(if $(PEER),@launch/install.sh '$(VENV)-peers' '$(PYTHON)' dev$(comma)peers)
	@$(if $(PEER),LRA_FNET_PEER_PYTHON='$(abspath $(VENV)-peers)/bin/python') $(FNET) benchmark \
		--task '$(TASK)' --models '$(or $(MODEL),$(MODELS))' --preset '$(PRESET)' --gin "$$GIN" \
		--lengths '$(LENGTHS)' --what '$(WHAT)' --rounds '$(ROUNDS)' --data '$(DATA)' $(source) \
		$(outside) $(if $(CLS),--cls) $(if $(PEER),--peer) $(if $(TOKENS),--tokens '$(TOKENS)')

drill:
	$(call install,)
	@$(FNET) drill --seed '$(SEED)' $(call given,jobs,JOBS)

check test:
	$(call install,tf$(comma)dev$(comma)slurm)
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python
	@$(VENV)/bin/pytest -q -n 2 $(if $(filter check,$@),-m 'not slow')

peers:
	@launch/install.sh '$(VENV)-peers' '$(PYTHON)' dev,peers
	@'$(VENV)-peers/bin/pytest' -q tests/peers

slurm-test:
	$(call install,slurm$(comma)dev)
	@tests/slurm/install.sh
	@$(VENV)/bin/pytest -q tests/slurm/jobs.py

clean:
	rm -rf '$(VENV)' '$(VENV)-peers' .pytest_cache .ruff_cache reports build dist *.egg-info
	find lra_fnet tests examples -name __pycache__ -prune -exec rm -rf {} +
