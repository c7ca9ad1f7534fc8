# `make` or `make help` lists the verbs. Each one first installs what it needs into .venv; the second time that takes no time.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help install install-dev install-engines

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1|/' | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

install: ## Everything into .venv (3 minutes once, 2.8 GB)
	@$(PYTHON) tools/install.py

install-dev: ## Only the tools for checks, simulated tests and docs
	@$(PYTHON) tools/install.py dev

install-engines: ## Only the engines, as `make demo` does
	@$(PYTHON) tools/install.py engines
