# `make demo` and `make test` each work alone on a fresh machine: they create .venv, install into it and run.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

DATA ?= auto
ARGS ?=
# Worker processes of the tests; -n 0 runs them in one process, for a debugger.
WORKERS ?= auto

# A worker that has no more tests takes some from another.
# Sets have the same order in every run.
PYTEST := PYTHONHASHSEED=$${PYTHONHASHSEED:-0} $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: demo reproduce test test-all lowest interpreters package docs lint format benchmark clean help

help:
	@echo "make demo       private teachers -> private labels -> student, on real images (DATA=$(DATA), ARGS='...')"
	@echo "make reproduce  the paper's figures and tables, and more, into runs/reproduce (ARGS='name ...')"
	@echo "make test       the quick tests, on all cores (WORKERS=$(WORKERS))"
	@echo "make test-all   every test, including slow ones"
	@echo "make lowest     the quick tests with the lowest declared versions (ARGS=--torch: also of Torch)"
	@echo "make interpreters  the solver's tests, on every Python from 3.10 to 3.13 that this machine has"
	@echo "make lint       ruff, mypy --strict, pylint's duplicate-code"
	@echo "make package    wheel and sdist into dist/, checked, installed and smoke-tested"
	@echo "make docs       the documentation, into docs/_build/html"
	@echo "make format     apply ruff's formatting and fixes"
	@echo "make benchmark  speed and memory, into runs/benchmarks (ARGS='--small --check')"

demo: $(READY)
	$(BIN)/python -m recipes.01_private_labels --data $(DATA) $(ARGS)

reproduce: $(READY)
	$(BIN)/python -m recipes.reproduce $(ARGS)

test: $(READY)
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(PYTEST) -m "not slow" $(ARGS)

test-all: $(READY)
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(PYTEST) $(ARGS)

lowest: $(READY)
	.ci/lowest $(ARGS)

interpreters:
	.ci/interpreters

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pylint --score=n darrm_torch recipes benchmarks tests

package: $(READY)
	.ci/package

docs: $(READY)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build/html

benchmark: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .venv-lowest build dist *.egg-info

# Installed once; again only when the list of dependencies changes.
$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "darrm-torch needs Python 3.10 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(READY)
