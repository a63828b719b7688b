PYTHON ?= python3
BIN := .venv/bin
# the cores of a small machine: each process imports all packages and collects all tests
TEST_PROCESSES ?= 2
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all check bench docs library

# One stamp for the whole environment: made once, and again when a requirement changes.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev]"
	@# pip would compile on one core; tests of packages are left out, and some are no valid Python
	@$(BIN)/python -W ignore -m compileall -qq -j 0 -x /tests/ .venv/lib || true
	touch $@

# Compiles the simulator again if its C files have changed since.
library: .venv/.installed
	@$(BIN)/python nac_drive/envs/native/build.py --if-stale

demo: library
	$(BIN)/nac-drive demo

test: library
	$(PYTEST) -m "not slow"

test-all: library
	$(PYTEST)

check: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: library
	$(BIN)/python benchmarks/speed/throughput.py

# The docs site in docs/_build/html; every warning fails.
docs: .venv/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	$(BIN)/sphinx-build --fail-on-warning --keep-going --fresh-env -b html docs docs/_build/html
