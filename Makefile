# `make` or `make help` lists the verbs. Each one first installs what it needs into .venv; the second time that takes no
# time. A different interpreter: make PYTHON=python3.12 …

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN := .venv/bin
CODE := src tests tools $(wildcard bench examples)
SEEDS ?= 20000
# One seed for hashes: what Hypothesis tries depends on the order of sets, and a test run says the same twice.
PYTEST := PYTHONHASHSEED=0 $(BIN)/python -m pytest

# Coverage is measured on the sources (PODIUM_PURE=1); what drives the core runs a second time on the compiled core, which
# sim, real and bench use anyway.
COMPILED_TESTS := tests/test_compiled.py tests/core tests/contract tests/cases tests/runtime

# What the tests on real engines need to be repeatable and to reach for nothing outside.
REAL_ENVIRONMENT := HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 TORCHDYNAMO_DISABLE=1 TOKENIZERS_PARALLELISM=false \
	PODIUM_REQUIRE_ENGINES=1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test check fix types rules unit sim explore simulate mutate real bench docs
.PHONY: install install-dev install-engines lock clean

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{ printf "  %-16s %s\n", $$1, $$2 }'

demo: install-engines ## Ask the `voice` pipeline a question: text on the terminal, speech in demo-output/
	@$(BIN)/podium generate voice "Why is the sky blue?" --out demo-output

test: check types rules unit sim real ## All of it, as CI does: check types rules unit sim real

check: install-dev ## Lint, format, layers
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check --quiet $(CODE) || { echo "Some files are not formatted: make fix"; exit 1; }
	@$(BIN)/lint-imports --no-logo

fix: install-dev ## Repair what lint and format can repair by themselves
	@$(BIN)/ruff check --fix-only --quiet $(CODE)
	@$(BIN)/ruff format $(CODE)

types: install-dev ## Strict types
	@$(BIN)/mypy $(CODE)

rules: install ## The contract's rules and the tests that cite them; fails on a rule without a test
	@$(BIN)/python -m tools.rules

unit: install ## All tests but those of sim/ and real/, with 100 % of the core's branches covered, then its tests again compiled
	@PODIUM_PURE=1 $(PYTEST) tests --ignore=tests/sim --ignore=tests/real -n 2 --quiet \
		--cov --cov-context=test --cov-report=term --cov-fail-under=100
	@PODIUM_PURE=1 $(BIN)/python -m tools.own_coverage
	@$(PYTEST) $(COMPILED_TESTS) -n 2 --quiet

sim: install ## Whole engines in a simulated world, and every interleaving of events in small ones
	@$(PYTEST) tests/sim -n 2 --quiet

explore: install ## Every interleaving of events in small worlds: a table (`make sim` explores the same worlds)
	@$(BIN)/podium explore

simulate: install ## SEEDS (20000) worlds of the simulation on all cores; what is wrong becomes a journal in simulate-output/
	@$(BIN)/podium simulate --seeds $(SEEDS) --journals simulate-output

mutate: install ## Faults planted in the core, one at a time: how many are found, and which are not (a quarter of an hour)
	@PYTHONHASHSEED=0 $(BIN)/python -m tools.mutate

real: install ## Real engines (minutes)
	@$(REAL_ENVIRONMENT) $(PYTEST) tests/real --timeout=600

bench: install ## The orchestrator beside the bare floor: a table, and JSON in bench-output/
	@$(BIN)/python -m bench --json bench-output/bench.json

docs: install-dev ## The documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "site/index.html"

install: ## Everything into .venv (4 minutes once, 2.9 GB), and the core compiled (a minute after each change of it)
	@$(PYTHON) tools/install.py
	@$(BIN)/python -m tools.compile

install-dev: ## Only the tools for checks and docs
	@$(PYTHON) tools/install.py dev

install-engines: ## Only the engines, as `make demo` does
	@$(PYTHON) tools/install.py engines

lock: install ## Write the pinned lists in requirements/ from what is in .venv
	@$(BIN)/python -m tools.lock

clean: ## Remove everything that was made, .venv too
	rm -rf .venv src/podium/_native site demo-output bench-output simulate-output .coverage .coverage.* htmlcov
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
