# Every command of the project. `make` alone lists them.
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
NAME ?=
RUNS ?= runs
DATA ?= data
SOURCE ?=
DATASET ?=
LENGTHS ?=
IMPORT ?=
GIN_DIR ?=
FORCE ?=
ACCELERATOR ?=
comma := ,
export GIN GRID

FNET = $(VENV)/bin/lra-fnet
install = @launch/install.sh '$(VENV)' '$(PYTHON)' '$(1)'
source = $(if $(SOURCE),--source '$(SOURCE)')
outside = $(foreach module,$(IMPORT),--import '$(module)') $(foreach folder,$(GIN_DIR),--gin-dir '$(folder)')

.PHONY: help lra data describe test check peers sweep report benchmark clean

help:
	@echo 'make lra TASK=listops MODEL=fnet   prepare, train, evaluate, print the table'
	@echo '         [PRESET=paper|lra-code|cpu] [SEED=0] [GIN="Run.num_steps=100 Encoder.num_layers=2"]'
	@echo '         [NAME=] [RUNS=runs] [DATA=data] [SOURCE=folder|file|URL] [FORCE=1] [ACCELERATOR=cuda]'
	@echo '         [IMPORT=examples/my_mixer.py GIN_DIR=examples/gin]  your own encoder or task'
	@echo 'make data TASK=text|all            prepare and verify data [DATASET=] [DATA=data] [SOURCE=folder|file|URL]'
	@echo 'make describe                      what is prepared: rows, lengths, floors, sizes, licences'
	@echo 'make test                          format, lint, types, tests'
	@echo 'make check                         the same without the slow tests'
	@echo 'make peers                         our encoders against PyTorch ones (installs PyTorch beside)'
	@echo 'make sweep TASK=listops MODELS=fnet,linear SEEDS=3 [GRID="Run.batch_size=[16,32]"]'
	@echo 'make report                        the accuracy table of runs/ and results/; the README has that of results/'
	@echo 'make benchmark TASK= MODEL=        the training loop against its bare program'
	@echo '         [LENGTHS=1024,2048]         steps/s and peak memory at these lengths (MODELS=all)'
	@echo 'make clean                         removes caches and the environment; runs and data stay'

lra:
	$(call install,$(ACCELERATOR))
	@LRA_FNET_MAKE=1 $(FNET) train --task '$(TASK)' --model '$(MODEL)' --preset '$(PRESET)' \
		--seed '$(SEED)' --gin "$$GIN" --name '$(NAME)' --runs '$(RUNS)' --data '$(DATA)' \
		$(source) $(outside) $(if $(FORCE),--force)

data:
	$(call install,)
	@$(FNET) data --task '$(TASK)' --dataset '$(DATASET)' --data '$(DATA)' $(source) $(outside)

describe:
	$(call install,)
	@$(FNET) data --describe --task '$(or $(TASK),all)' --data '$(DATA)' $(outside)

sweep:
	$(call install,$(ACCELERATOR))
	@$(FNET) sweep --task '$(TASK)' --models '$(MODELS)' --preset '$(PRESET)' --seeds '$(SEEDS)' \
		--gin "$$GIN" --grids "$$GRID" --runs '$(RUNS)' --data '$(DATA)' $(source) $(outside)

report:
	$(call install,)
	@$(FNET) report --runs '$(RUNS)' --readme README.md

benchmark:
	$(call install,$(ACCELERATOR))
	@$(FNET) benchmark --task '$(TASK)' --models '$(or $(MODEL),$(MODELS))' --preset '$(PRESET)' \
		--gin "$$GIN" --data '$(DATA)' $(source) $(outside) $(if $(LENGTHS),--lengths '$(LENGTHS)')

check test:
	$(call install,tf$(comma)dev)
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python
	@$(VENV)/bin/pytest -q -n 2 $(if $(filter check,$@),-m 'not slow')

peers:
	@launch/install.sh '$(VENV)-peers' '$(PYTHON)' dev,peers
	@'$(VENV)-peers/bin/pytest' -q tests/peers

clean:
	rm -rf '$(VENV)' '$(VENV)-peers' .pytest_cache .ruff_cache reports build dist *.egg-info
	find lra_fnet tests examples -name __pycache__ -prune -exec rm -rf {} +
