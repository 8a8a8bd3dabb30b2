# make demo   self-adaptive against ordinary training, in about a minute
# make test   everything that is tested
# make cover  the same, more slowly, with the lines that no test runs
# make check  lint, format and types
# Each makes .venv from the lock file the first time.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: demo test cover check bench format

demo: .venv/ready
	$(BIN)/selfadapt demo

test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not alone"
	$(BIN)/python -m pytest -m alone

cover: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --cov --cov-report=term:skip-covered -n 2 --dist worksteal -m "not alone"

check: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/python -m benchmarks

format: .venv/ready
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch .venv/ready
