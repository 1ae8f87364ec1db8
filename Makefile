# The verbs of the repository. `make help` lists them; CI calls the same ones.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help sync demo test check format build

# Extra arguments for every pip call, e.g. PIP_ARGS="--find-links /mnt/wheels".
PIP_ARGS ?=
# Extra arguments for pytest, e.g. PYTEST_ARGS="-k gae -x".
PYTEST_ARGS ?=
# The first Python that is new enough. 3.11 comes first: it is the version the pinned packages were
# measured with. Each candidate is run, because a version manager may leave names that only complain.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; \
	done)

BIN := .venv/bin
# Written when an installation ended well; newer than what it was made from means nothing to do.
STAMP := .venv/surefoot-synced
TORCH = $(shell sed -n 's/^torch==/&/p' constraints.txt)
# pip shows its progress to somebody at a terminal; a log gets a line for each stage.
PIP = quiet=--quiet; if [ -t 1 ] && [ -z "$${CI:-}" ]; then quiet=; fi; \
	$(BIN)/python -m pip --disable-pip-version-check $$quiet

help: ## list the verbs
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

sync: $(STAMP) ## make or update .venv

$(STAMP): pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/python ]; then \
		if [ -z "$(PYTHON)" ]; then \
			echo "make sync: error: no Python 3.11 or newer found; name one: make sync PYTHON=/path/to/python3" >&2; \
			exit 2; \
		fi; \
		echo "1/3 making .venv with $(PYTHON)"; \
		"$(PYTHON)" -m venv .venv; \
	fi
# torch goes first, alone and by exact version: asked for as a range, by us or by another package,
# pip takes the newest build there is, which on Linux is a CUDA one of several GB. The exact version
# lets it take the CPU build where the machine or PIP_ARGS offers one.
	@echo "2/3 installing $(TORCH), the largest package (minutes the first time)"
	@$(PIP) install -c constraints.txt $(PIP_ARGS) "$(TORCH)"
	@echo "3/3 installing surefoot and the other packages, pinned by constraints.txt"
	@$(PIP) install -c constraints.txt $(PIP_ARGS) -e ".[all,dev]"
	@touch $@
	@echo "done: .venv has all of it"

demo: sync ## train, export, validate and run a quadruped on this machine
	@$(BIN)/surefoot demo

test: sync ## the test suite, without what is marked slow or gpu
	@$(BIN)/python -m pytest -q -n 2 -m "not slow and not gpu" $(PYTEST_ARGS)

check: sync ## lint, format, types and import rules; changes no file
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports

format: sync ## fix what ruff can fix, and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

build: sync ## wheel and sdist into dist/, tried in clean environments
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation
	@$(BIN)/python tests/smoke.py dist $(PIP_ARGS)
