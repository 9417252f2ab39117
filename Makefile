# Each target is complete on a fresh machine: it makes the virtual environment it needs.
# Overridable: PYTHON (the interpreter to build on), VENV (where), EXTRAS (to install), PYTEST_ARGS
# (e.g. "-k routers"), WORKERS (tests at a time; 0, say for PYTEST_ARGS=--pdb: in this process).

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev
PYTEST_ARGS ?=
WORKERS ?= 2
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO := build/demo
BENCH_ARGS ?=
KILL_SEED ?= 1
FUZZ_INPUTS ?= 10000
FUZZ_ARGS ?=
LOAD_MINUTES ?= 30
LOAD_RUN ?= build/load/run
VERSIONS_ARGS ?=
MATRIX_ARGS ?=
PEERS := build/peers-venv
PEERS_ARGS ?=
ACCURACY := build/accuracy-venv

# pip's isolated build of this package obeys the pins too (first name: pip < 25.3, second: later).
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv lint format types test fast test-all matrix kill-test fault-test demo bench bench-peers accuracy-venv docs clean fuzz load-test versions

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## make .venv with everything pinned; repeated only when the requirements change

# Compiling every file of every package takes a third of the time; what is imported compiles itself.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 15))' || { \
		echo "error: $(PYTHON) must be Python 3.10 to 3.14; try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
		exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "error: $(PYTHON) cannot make virtual environments (no ensurepip);" \
			"on Debian or Ubuntu: apt-get install python3-venv" >&2; \
		exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[$(EXTRAS)]"
	@$(BIN)/python -c 'import lightning.pytorch, torch'
	@touch $@

lint: venv ## check style and formatting (ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: venv ## rewrite the code in the project's format (ruff)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

types: venv ## check the types of both packages and the examples (mypy)
	$(BIN)/mypy

# First what measures, with nothing beside it; then the rest, whatever that has found. In one of the
# two PYTEST_ARGS may select nothing, of which pytest says 5. Without PYTEST_ARGS the first reads
# only the files that have such tests.
SERIAL = $(if $(PYTEST_ARGS),,$(shell grep -rl 'mark\.serial' tests))
define run_tests
	@alone=0; together=0; \
	$(BIN)/python -m pytest -m "serial$(1)" $(SERIAL) $(PYTEST_ARGS) || alone=$$?; \
	$(BIN)/python -m pytest -m "not serial$(1)" -n $(WORKERS) --dist worksteal $(PYTEST_ARGS) \
		|| together=$$?; \
	case "$$alone $$together" in "0 0"|"0 5"|"5 0") ;; *) exit 1 ;; esac
endef

test: lint types fast ## lint, types, then all but the slow tests; some need RECSYS_MOE_DATA

fast: venv ## all but the slow tests
	$(call run_tests, and not slow)

test-all: lint types ## lint, types, then all tests
	$(run_tests)

matrix: venv ## the fast tests under other circumstances; MATRIX_ARGS="avx2 c-locale": these alone
	$(BIN)/python tests/matrix/matrix.py $(MATRIX_ARGS)

# 336 + 20 + 4 of fit and its workers, 600 of other commands, 40 of a service and what replaces its model.
kill-test: venv ## 1,000 SIGKILLs: fit, its workers, eight other commands, the service; an hour
	PYTHONPATH=. $(BIN)/python tests/crash/kills.py --kills 336 --commands 0 --seed $(KILL_SEED)
	PYTHONPATH=. $(BIN)/python tests/crash/kills.py --kills 0 --commands 20 --seed $(KILL_SEED) \
		--set trainer.devices=2 --workers 0.5
	PYTHONPATH=. $(BIN)/python tests/crash/kills.py --kills 0 --commands 4 --seed $(KILL_SEED) \
		--set trainer.devices=4 --workers 1
	PYTHONPATH=. $(BIN)/python tests/crash/commands.py --seed $(KILL_SEED)
	PYTHONPATH=. $(BIN)/python tests/crash/reloads.py --kills 40 --seed $(KILL_SEED)

fault-test: venv ## let the disk fail at each write of seven commands, and the clock jump; needs cc
	PYTHONPATH=. $(BIN)/python tests/crash/faults.py --seed $(KILL_SEED)

fuzz: venv ## send FUZZ_INPUTS made-up inputs (10,000) through every door; goes on where it ended
	PYTHONPATH=. $(BIN)/python tests/fuzz/fuzz.py --inputs $(FUZZ_INPUTS) --state build/fuzz $(FUZZ_ARGS)

load-test: venv ## soak the service LOAD_MINUTES (30): bad requests, hot reloads, memory
	@test -d $(LOAD_RUN)/model || { \
		$(BIN)/recsys-moe prepare synthetic --out build/load/data --overwrite && \
		$(BIN)/recsys-moe fit --data build/load/data --config quickstart --out $(LOAD_RUN) --overwrite; }
	$(BIN)/python benchmarks/soak.py $(LOAD_RUN) --minutes $(LOAD_MINUTES) --seed 1

versions: build/uv/bin/uv ## Python 3.10 to 3.14, pinned and lowest versions: the basics; VERSIONS_ARGS="--python 3.12"
	build/uv/bin/python tests/versions/versions.py $(VERSIONS_ARGS)

build/uv/bin/uv:
	$(PYTHON) -m venv --clear build/uv
	PIP_CONSTRAINT= build/uv/bin/python -m pip install --quiet uv

docs: venv ## build the documentation site into build/site, with checked links
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

demo: venv ## synthetic data, fit MOESART, print AUC and MSE and a user's top 10
	$(BIN)/recsys-moe prepare synthetic --out $(DEMO)/data --overwrite
	$(BIN)/recsys-moe fit --data $(DEMO)/data --config quickstart --out $(DEMO)/run --overwrite
	$(BIN)/recsys-moe evaluate $(DEMO)/run
	$(BIN)/recsys-moe recommend $(DEMO)/run --user 1 --k 10 --exclude-seen

bench: venv ## every benchmark but those against peers, then a table of all targets
	$(BIN)/python benchmarks/run_all.py $(BENCH_ARGS)

bench-peers: venv $(PEERS)/.installed ## training speed beside torch-rechub, DeepCTR-Torch and a dense twin
	$(BIN)/python benchmarks/peers/compare.py --peers-python $(PEERS)/bin/python $(PEERS_ARGS)

# The peers' own environment with their own pins; never a dependency of this project.
$(PEERS)/.installed: benchmarks/peers/requirements.txt
	$(PYTHON) -m venv --clear $(PEERS)
	PIP_CONSTRAINT= $(PEERS)/bin/python -m pip install --quiet -r $<
	@touch $@

accuracy-venv: $(ACCURACY)/.installed ## make the environment of the peers of `python -m research.accuracy`

$(ACCURACY)/.installed: research/accuracy/requirements.txt
	$(PYTHON) -m venv --clear $(ACCURACY)
	PIP_CONSTRAINT= $(ACCURACY)/bin/python -m pip install --quiet -r $<
	@touch $@

clean: ## remove what these targets made: the environment, build outputs, caches
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache
	find recsys_moe data_prep tests benchmarks research -type d -name __pycache__ -prune -exec rm -rf {} +
