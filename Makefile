# make demo         self-adaptive against ordinary training, in about a minute
# make test         everything that is tested
# make test-matrix  the numerical tests under several instruction sets, thread counts and seeds (tests/matrix.py)
# make cover        the tests, more slowly, with the lines that no test runs
# make check        lint, format and types
# make docs         the documentation as a site, in site/
# make extras       adds to .venv what the optional extras need: attacks, text, Parquet, ONNX
# make lock         makes the lock files again, from the newest versions that pyproject.toml allows
# Each makes .venv from the lock files the first time; the demo installs only what running needs.

# The first that runs and is new enough; a name on the path may be a shim that does not.
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
	$$name $(NEW_ENOUGH) 2>/dev/null && echo $$name && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := -m pip install --disable-pip-version-check --progress-bar off --no-build-isolation
RUN_LOCK := -c requirements.lock
ALL_LOCKS := $(RUN_LOCK) -c requirements-dev.lock

.PHONY: demo test test-doors test-matrix cover check docs bench format extras lock

demo: $(VENV)/ready
	$(BIN)/selfadapt demo

test: $(VENV)/dev-ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-doors: $(VENV)/doors-ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m door

test-matrix: $(VENV)/dev-ready
	$(BIN)/python tests/matrix.py

cover: $(VENV)/dev-ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --cov --cov-report=term:skip-covered -n 2 --dist worksteal

check: $(VENV)/dev-ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(VENV)/dev-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/dev-ready
	$(BIN)/python -m benchmarks

format: $(VENV)/dev-ready
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

$(VENV)/ready: requirements.lock pyproject.toml
	@$(or $(PYTHON),false) $(NEW_ENOUGH) || { \
		echo "selfadapt needs Python 3.11 or newer; name one: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) $(RUN_LOCK) hatchling editables
	$(BIN)/python $(INSTALL) $(RUN_LOCK) -e .
	touch $@

$(VENV)/dev-ready: $(VENV)/ready requirements-dev.lock
	$(BIN)/python $(INSTALL) $(ALL_LOCKS) -e ".[dev]"
	touch $@

$(VENV)/doors-ready: $(VENV)/dev-ready requirements-doors.lock
	$(BIN)/python $(INSTALL) $(ALL_LOCKS) -c requirements-doors.lock -e ".[doors]"
	touch $@

extras: $(VENV)/ready
	$(BIN)/python $(INSTALL) $(ALL_LOCKS) -e ".[all]"

# pip freeze lists what an empty environment got; what the second lock adds is what the first one lacks.
lock:
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python $(INSTALL) hatchling editables
	.venv-lock/bin/python $(INSTALL) -e .
	.venv-lock/bin/python -m pip freeze --all --exclude-editable --exclude pip > requirements.lock
	.venv-lock/bin/python $(INSTALL) $(RUN_LOCK) -e ".[dev]"
	.venv-lock/bin/python -m pip freeze --all --exclude-editable --exclude pip | grep -vxFf requirements.lock > requirements-dev.lock
	.venv-lock/bin/python $(INSTALL) $(ALL_LOCKS) -e ".[doors]"
	.venv-lock/bin/python -m pip freeze --all --exclude-editable --exclude pip \
		| grep -vxFf requirements.lock | grep -vxFf requirements-dev.lock > requirements-doors.lock
	rm -rf .venv-lock
