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
WHAT ?=
CLS ?=
TOKENS ?=
EXPLAIN ?=
PEER ?=
ROUNDS ?= 5
IMPORT ?=
GIN_DIR ?=
FORCE ?=
FIT ?=
ACCELERATOR ?=
SWEEP ?=
RANGE ?=
SAMPLER ?=
TRIALS ?=
JOBS ?= 1
PRUNE ?=
RETRY ?=
FINISH ?=
comma := ,
export GIN GRID RANGE

FNET = $(VENV)/bin/lra-fnet
install = @launch/install.sh '$(VENV)' '$(PYTHON)' '$(1)'
source = $(if $(SOURCE),--source '$(SOURCE)')
# --name 'value' of a variable that the user has set: a sweep's own value stands for the others.
given = $(if $(filter-out file undefined,$(origin $(2))),$(if $($(2)),--$(1) '$($(2))'))
outside = $(foreach module,$(IMPORT),--import '$(module)') $(foreach folder,$(GIN_DIR),--gin-dir '$(folder)')

.PHONY: help lra data describe test check peers slurm-test sweep report benchmark clean

help:
	@echo 'make lra TASK=listops MODEL=fnet   prepare, train, evaluate, print the table'
	@echo '         [PRESET=paper|lra-code|cpu] [SEED=0] [GIN="Run.num_steps=100 Encoder.num_layers=2"]'
	@echo '         [NAME=] [RUNS=runs] [DATA=data] [SOURCE=folder|file|URL] [FORCE=1] [FIT=1] [ACCELERATOR=cuda]'
	@echo '         [IMPORT=examples/my_mixer.py GIN_DIR=examples/gin]  your own encoder or task'
	@echo 'make data TASK=text|all            prepare and verify data [DATASET=] [DATA=data] [SOURCE=folder|file|URL]'
	@echo 'make describe                      what is prepared: rows, lengths, floors, sizes, licences'
	@echo 'make test                          format, lint, types, tests'
	@echo 'make check                         the same without the slow tests'
	@echo 'make peers                         our encoders against PyTorch ones (installs PyTorch beside)'
	@echo 'make slurm-test                    launch/slurm.py on a real SLURM of one node (root; installs slurm-wlm)'
	@echo 'make sweep TASK=listops MODELS=fnet,linear SEEDS=3 [GRID="Run.batch_size=[16,32]"]'
	@echo '         [SWEEP=gin/sweeps/image_layers.gin] [JOBS=2: at a time] [RETRY=1: failed ones too]'
	@echo '         [SAMPLER=random|tpe TRIALS=20 RANGE="Optimizer.learning_rate=[1e-4,1e-2,\"log\"]" PRUNE=1]'
	@echo '         [FINISH=1: select on validation, score the selected on test]'
	@echo 'make report                        tables and figures of runs/ and results/: reports/index.html, LaTeX, Markdown, CSV'
	@echo 'make benchmark TASK= MODELS=       speed and memory against LENGTHS=512,1024; without, the loop against its program'
	@echo '         [WHAT=train,infer,memory,mixing,scaling,pipeline] [CLS=1: L + 1 too] [ROUNDS=5]'
	@echo '         [TOKENS=16384: a batch of so many at every length] [EXPLAIN=1: how the DFT is computed]'
	@echo '         [PEER=1: beside PyTorch, installed beside]'
	@echo 'make clean                         removes caches and the environment; runs and data stay'

lra:
	$(call install,$(ACCELERATOR))
	@LRA_FNET_MAKE=1 $(FNET) train --task '$(TASK)' --model '$(MODEL)' --preset '$(PRESET)' \
		--seed '$(SEED)' --gin "$$GIN" --name '$(NAME)' --runs '$(RUNS)' --data '$(DATA)' \
		$(source) $(outside) $(if $(FORCE),--force) $(if $(FIT),--fit)

data:
	$(call install,)
	@$(FNET) data --task '$(TASK)' --dataset '$(DATASET)' --data '$(DATA)' $(source) $(outside)

describe:
	$(call install,)
	@$(FNET) data --describe --task '$(or $(TASK),all)' --data '$(DATA)' $(outside)

sweep:
	$(call install,$(ACCELERATOR))
	@LRA_FNET_MAKE_SWEEP=1 $(FNET) sweep $(call given,sweep,SWEEP) $(call given,task,TASK) \
		$(call given,models,MODELS) $(call given,preset,PRESET) $(call given,seeds,SEEDS) \
		$(call given,sampler,SAMPLER) $(call given,trials,TRIALS) $(call given,name,NAME) \
		--gin "$$GIN" --grids "$$GRID" --ranges "$$RANGE" --jobs '$(JOBS)' $(if $(PRUNE),--prune) \
		$(if $(RETRY),--retry) $(if $(FINISH),--finish) --runs '$(RUNS)' --data '$(DATA)' \
		$(source) $(outside)

report:
	$(call install,)
	@$(FNET) report --runs '$(RUNS)' --readme README.md

benchmark:
	$(call install,$(ACCELERATOR))
	$(if $(PEER),@launch/install.sh '$(VENV)-peers' '$(PYTHON)' dev$(comma)peers)
	@$(if $(PEER),LRA_FNET_PEER_PYTHON='$(abspath $(VENV)-peers)/bin/python') $(FNET) benchmark \
		--task '$(TASK)' --models '$(or $(MODEL),$(MODELS))' --preset '$(PRESET)' --gin "$$GIN" \
		--lengths '$(LENGTHS)' --what '$(WHAT)' --rounds '$(ROUNDS)' --data '$(DATA)' $(source) \
		$(outside) $(if $(CLS),--cls) $(if $(PEER),--peer) $(if $(TOKENS),--tokens '$(TOKENS)') \
		$(if $(EXPLAIN),--explain)

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
