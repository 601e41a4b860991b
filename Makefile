# Every target first makes .venv, once, and again when the dependencies change.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# Modules are compiled when they are first imported: most of the tens of thousands never are.
PIP := $(PY) -m pip --disable-pip-version-check
INSTALL_LOCKED := $(PIP) install --no-compile --no-deps --require-hashes -r
PYTEST_ARGS ?=

.PHONY: help demo test torture lint coverage format lock bench docs clean install-locked install-pinned
.DEFAULT_GOAL := help

help:
	@echo "make demo     fit the demonstration models and write build/demo-report.html"
	@echo "make test     everything that continuous integration checks"
	@echo "make torture  hard tables with every option and random comparisons; ten minutes"
	@echo "make lint     ruff, mypy and the import contracts only"
	@echo "make coverage the tests, and which lines and branches they run through"
	@echo "make format   rewrite the files in the house format"
	@echo "make lock     write anew which version of each package is installed, with hashes"
	@echo "make bench    a short accuracy benchmark (needs TWOSTAGEGP_DATA)"
	@echo "make docs     build the documentation into site/"
	@echo "make clean    remove what the other targets wrote, except $(VENV)"

# Every file is checked against the locks, with LOCKED=only without a second way. Where the index has
# other files than the locks know, versions alone are pinned, and the screen says so.
$(STAMP): pyproject.toml constraints.txt supply/dev.lock supply/cpu.lock supply/cuda.lock
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(MAKE) --no-print-directory install-locked || { test "$(LOCKED)" != only && \
		echo "The locks do not fit this index or platform: installing without hashes." && \
		$(MAKE) --no-print-directory install-pinned; }
	touch $@

# torch goes first, in its build for CPUs where pip is offered one; the build from the index may ask for
# libraries for NVIDIA cards. The last step fetches nothing: what the locks lack is an error.
install-locked:
	$(INSTALL_LOCKED) supply/cpu.lock || echo "No torch for CPUs alone is offered: the index's is next."
	$(INSTALL_LOCKED) supply/dev.lock
	if $(PIP) check | grep -q '^torch .* not installed'; then $(INSTALL_LOCKED) supply/cuda.lock; fi
	$(PIP) install --no-index --no-build-isolation -e ".[dev]"

install-pinned:
	$(PIP) install --no-compile -c constraints.txt $(shell grep '^torch==' constraints.txt)
	$(PIP) install --no-compile -c constraints.txt -e ".[dev]"

# In an environment of its own: it must work where the lock does not.
lock: constraints.txt pyproject.toml
	test -x .venv-lock/bin/python || $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-lock/bin/python -m supply.lock

demo: $(STAMP)
	$(PY) -m twostagegp.cli.demo

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-logo

# One BLAS thread a worker: two workers with a pool of threads each would fight for the cores. A file
# goes to one worker, so that what its tests share is fitted once.
test: export OMP_NUM_THREADS = 1
test: lint
	$(PY) -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

coverage: export OMP_NUM_THREADS = 1
coverage: $(STAMP)
	$(PY) -m pytest -n 2 --dist loadfile --cov --cov-report=json $(PYTEST_ARGS)
	$(PY) -m supply.covered build/coverage.json

torture: export OMP_NUM_THREADS = 1
torture: $(STAMP)
	$(PY) -m pytest -n 2 -m torture tests/torture tests/package/test_differential.py $(PYTEST_ARGS)

format: $(STAMP)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(STAMP)
	$(PY) -m benchmarks.uci_small --splits 1 --sets yacht,boston

docs: $(STAMP)
	$(PY) -m mkdocs build --strict

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +
