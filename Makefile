PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check bench

# One stamp for the whole environment: made once, and again when a requirement changes.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: .venv/.installed
	$(BIN)/nac-drive demo

test: .venv/.installed
	$(BIN)/python -m pytest

check: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: .venv/.installed
	$(BIN)/python benchmarks/throughput.py
