# Every target first makes .venv, once, and again when the dependencies change.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# Modules are compiled when they are first imported: most of the tens of thousands never are.
PIP_INSTALL := $(PY) -m pip install --disable-pip-version-check --no-compile -c constraints.txt
TORCH := $(shell grep '^torch==' constraints.txt)
PYTEST_ARGS ?=

.PHONY: help demo test torture lint format bench docs clean
.DEFAULT_GOAL := help

help:
	@echo "make demo     fit the demonstration models and write build/demo-report.html"
	@echo "make test     everything that continuous integration checks"
	@echo "make torture  hard tables with every option and random comparisons; half an hour"
	@echo "make lint     ruff and mypy only"
	@echo "make format   rewrite the files in the house format"
	@echo "make bench    a short accuracy benchmark (needs TWOSTAGEGP_DATA)"
	@echo "make docs     build the documentation into site/"
	@echo "make clean    remove what the other targets wrote, except $(VENV)"

# torch goes first and alone, so that the pinned build is chosen before anything can ask for another.
$(STAMP): pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) $(TORCH)
	$(PIP_INSTALL) -e ".[dev]"
	touch $@

demo: $(STAMP)
	$(PY) -m twostagegp.demo

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# One BLAS thread a worker: two workers with a pool of threads each would fight for the cores.
test: export OMP_NUM_THREADS = 1
test: lint
	$(PY) -m pytest -n 2 $(PYTEST_ARGS)

torture: export OMP_NUM_THREADS = 1
torture: $(STAMP)
	$(PY) -m pytest -n 2 -m torture tests/torture tests/test_differential.py $(PYTEST_ARGS)

format: $(STAMP)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(STAMP)
	$(PY) -m benchmarks.uci_small --splits 1 --sets yacht,boston

docs: $(STAMP)
	$(PY) -m mkdocs build --strict

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +
