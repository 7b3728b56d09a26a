# Two environments in one .venv: `make run` needs requirements.lock only, tests and checks need
# requirements-all.lock. Stamps in .venv record what is installed, so nothing is installed twice.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
PYTHON := $(VENV)/bin/python
PIP := $(PYTHON) -m pip --disable-pip-version-check -qq
# A lock file is whole: nothing is resolved. Older pips would look for the newest release of a
# package that is asked for with an extra, whatever is locked, and then refuse it.
LOCKED := install --no-deps --require-hashes
CORE := $(VENV)/.core-stamp
ALL := $(VENV)/.all-stamp
PROJECT := $(VENV)/.project-stamp

# `uv` writes the lock files. Nothing else uses it, so it is in neither of them.
UV_VERSION := 0.13.7
UV_COMPILE = $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(ARGS)

# Spark needs Java 17 or 21, which need not be the `java` on the PATH.
WITH_JAVA = if [[ -d tests/spark ]]; then java_home="$$(tools/java.sh)"; \
	[[ -z "$$java_home" ]] || export JAVA_HOME="$$java_home"; fi;

# Hundreds of processes are started by tests: each would compile all of penstock again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } \
		/^[a-z-]+:.*## / { printf "  \033[36mmake %-11s\033[0m %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: run
run: $(CORE) $(PROJECT) ## Start the demo (sets up what it needs on first use)
	@$(PYTHON) -m penstock.demo $(ARGS)

.PHONY: test
test: $(ALL) $(PROJECT) ## Run the tests; ARGS="-k topics -x" goes to pytest
	@$(WITH_JAVA) tools/test.sh $(PYTHON) $(ARGS)

.PHONY: check
check: $(ALL) $(PROJECT) ## Lint, formatting, types and the import rules
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/ruff format --check
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo

.PHONY: format
format: $(ALL) $(PROJECT) ## Format the code and apply the safe lint fixes
	@$(VENV)/bin/ruff check --fix
	@$(VENV)/bin/ruff format

.PHONY: bench
bench: $(ALL) $(PROJECT) ## Run the benchmarks; ARGS="--json" goes to them
	@$(PYTHON) -m bench $(ARGS)

.PHONY: soak
soak: $(ALL) $(PROJECT) ## Run the tests that take hours
	@$(WITH_JAVA) $(PYTHON) -m pytest -m soak --timeout 0 $(ARGS)

.PHONY: setup
setup: $(ALL) $(PROJECT) ## Install everything into .venv: all extras and the tools

.PHONY: setup-core
setup-core: $(CORE) $(PROJECT) ## Install only what `make run` needs

.PHONY: lock
lock: | $(PYTHON) ## Resolve pyproject.toml into both lock files; ARGS="--upgrade" for newer versions
	@[[ -x $(VENV)/bin/uv ]] || $(PIP) install uv==$(UV_VERSION)
	@echo "Resolving requirements-all.lock and requirements.lock ..."
	@$(UV_COMPILE) --all-extras --group build --group dev pyproject.toml -o requirements-all.lock
	@# Constrained by the first, so that both files name the same versions.
	@$(UV_COMPILE) --extra server --extra client --group build -c requirements-all.lock pyproject.toml -o requirements.lock
	@# Measured against, but not in the environment: it needs an older redis-py.
	@$(UV_COMPILE) bench/peers/arq.in -o bench/peers/arq.lock

.PHONY: clean
clean: ## Remove .venv, caches and build output
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A command that is on the PATH may still not run (version managers leave such stubs), so each is tried.
$(PYTHON):
	@for python in python3.13 python3.12 python3.11 python3; do \
		if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "Creating $(VENV) with $$($$python --version) ..."; \
			exec $$python -m venv $(VENV); \
		fi; \
	done; \
	echo "penstock needs Python 3.11 or newer with the venv module, and found none." >&2; \
	echo "Hint: on Debian and Ubuntu, apt-get install python3 python3-venv" >&2; \
	exit 1

$(CORE): requirements.lock | $(PYTHON)
	@echo "Installing requirements.lock ..."
	@$(PIP) $(LOCKED) -r requirements.lock
	@touch $@

$(ALL): requirements-all.lock $(CORE)
	@echo "Installing requirements-all.lock (with Spark, about 450 MB to download) ..."
	@$(PIP) $(LOCKED) -r requirements-all.lock
	@touch $@

$(PROJECT): pyproject.toml | $(CORE)
	@echo "Installing penstock in editable mode ..."
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@
