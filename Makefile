# make demo   self-adaptive against ordinary training, in about a minute
# make test   everything that is tested
# make cover  the same, more slowly, with the lines that no test runs
# make check  lint, format and types
# Each makes .venv from the lock file the first time.

# The first that runs and is new enough; a name on the path may be a shim that does not.
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
	$$name $(NEW_ENOUGH) 2>/dev/null && echo $$name && break; done)
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
	@$(or $(PYTHON),false) $(NEW_ENOUGH) || { \
		echo "selfadapt needs Python 3.11 or newer; name one: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch .venv/ready
