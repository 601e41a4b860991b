# Every target first creates the environment .venv, and again when the dependencies change.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# --no-compile: Python compiles a module when it is first imported, and most are never imported.
PIP := $(PY) -m pip --disable-pip-version-check
INSTALL_LOCKED := $(PIP) install --no-compile --no-deps --require-hashes -r
PYTEST_ARGS ?=
# Two workers with one BLAS thread each: two pools of threads would compete for the cores. All tests of
# a file go to one worker, so that module fixtures are computed once.
# Compiled modules are kept in build/, whatever the shell says: every worker and every process that a
# test starts imports torch and scikit-learn.
PYTEST := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/build/pycache OMP_NUM_THREADS=1 $(PY) \
	-m pytest -n 2 --dist loadfile
# Seconds that one test may take; a test that hangs fails with the stack of every thread.
TEST_SECONDS := 180
# The coverage gate, in percent.
COVERED_LINES := 95.5
COVERED_BRANCHES := 86.0

.PHONY: help check test lint format coverage torture demo bench docs lock clean install-locked install-pinned
.DEFAULT_GOAL := help

help:
	@echo "make check    lint, types, import contracts and the most important tests; under a minute"
	@echo "make test     everything that continuous integration runs"
	@echo "make lint     ruff, mypy and the import contracts only"
	@echo "make format   rewrite the files in the project's format"
	@echo "make coverage the tests, with the lines and branches that they run; fails below the gate"
	@echo "make torture  hard tables with every option and random comparisons; ten minutes"
	@echo "make demo     fit the demonstration models and write build/demo-report.html"
	@echo "make bench    a short accuracy benchmark (needs TWOSTAGEGP_DATA)"
	@echo "make docs     build the documentation into site/"
	@echo "make lock     choose the versions that are installed, and write them with hashes to supply/*.lock"
	@echo "make clean    remove what the other targets wrote, except $(VENV)"

# Installs the files that the locks name, checked by hash. If that fails because the package index or the
# platform has other files, installs by version without hashes, and says so; LOCKED=only forbids it.
$(STAMP): pyproject.toml constraints.txt supply/dev.lock supply/cpu.lock supply/cuda.lock
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(MAKE) --no-print-directory install-locked || { test "$(LOCKED)" != only && \
		echo "The locks do not fit this index or platform: installing without hashes." && \
		$(MAKE) --no-print-directory install-pinned; }
	touch $@

# torch first, in its build for CPUs if pip finds it; the build on the package index may require NVIDIA's
# libraries. The last step downloads nothing: a requirement that is missing from the locks is an error.
install-locked:
	$(INSTALL_LOCKED) supply/cpu.lock || echo "pip found no torch for CPUs alone: installing the index's build."
	$(INSTALL_LOCKED) supply/dev.lock
	if $(PIP) check | grep -q '^torch .* not installed'; then $(INSTALL_LOCKED) supply/cuda.lock; fi
	$(PIP) install --no-index --no-build-isolation -e ".[dev]"

install-pinned:
	$(PIP) install --no-compile -c constraints.txt $(shell grep '^torch==' constraints.txt)
	$(PIP) install --no-compile -c constraints.txt -e ".[dev]"

# In an environment of its own, because it must also work when the locks cannot be installed.
lock: constraints.txt pyproject.toml
	test -x .venv-lock/bin/python || $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-lock/bin/python -m supply.lock

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-logo

check: lint
	$(PYTEST) --timeout $(TEST_SECONDS) -q @tests/check.txt $(PYTEST_ARGS)

test: lint
	$(PYTEST) --timeout $(TEST_SECONDS) --durations=10 $(PYTEST_ARGS)

coverage: $(STAMP)
	$(PYTEST) --cov --cov-report=json $(PYTEST_ARGS)
	$(PY) -m supply.coverage_gate build/coverage.json --lines $(COVERED_LINES) --branches $(COVERED_BRANCHES)

torture: $(STAMP)
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 -m torture tests/torture tests/package/test_differential.py $(PYTEST_ARGS)

format: $(STAMP)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

demo: $(STAMP)
	$(PY) -m twostagegp.cli.demo

bench: $(STAMP)
	$(PY) -m benchmarks.uci_small --splits 1 --sets yacht,boston

docs: $(STAMP)
	$(PY) -m mkdocs build --strict

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +
