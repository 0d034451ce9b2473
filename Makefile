# `make` lists the targets. Another Python: PYTHON=python3.12 VENV=.venv312 make test
PYTHON ?=
VENV ?= .venv
BIN := $(VENV)/bin
# More arguments for pytest, as in: make test ARGS="-k pfm"
ARGS ?=
WORKERS ?= 2
pytest = OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(1)/pytest -n $(WORKERS) --dist worksteal -m "not slow and not gpu" $(ARGS)

export PYTHON VENV
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.PHONY: help demo test lowest lint docs bench clean venv

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## install into .venv, show what the zoo can do: ./demo/index.html
	$(BIN)/vizoo demo

test: $(VENV)/.installed-test ## install the test needs into .venv, run the tests
	$(call pytest,$(BIN))

lowest: ## run the tests with the oldest versions that pyproject.toml allows; needs uv
	uv venv --quiet --clear --python $(or $(PYTHON),3.10) $(VENV)-lowest
	uv pip install --python $(VENV)-lowest --resolution lowest-direct -e ".[test]"
	$(call pytest,$(VENV)-lowest/bin)

# mypy finds a package by the name of its folder, and a checkout may have any.
lint: $(VENV)/.installed-dev ## check style and formatting with ruff, types with mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p $(VENV)/.typed && ln -sfn "$(CURDIR)" $(VENV)/.typed/vizoo
	MYPYPATH=$(VENV)/.typed $(BIN)/mypy -p vizoo

docs: $(VENV)/.installed-docs ## build the site: docs/_build/html/index.html
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

bench: $(VENV)/.installed-test ## run the benchmarks, one after the other
	$(BIN)/python -m benchmarks

clean: ## remove .venv, caches and what the demo wrote
	rm -rf $(VENV) $(VENV)-lowest build dist demo docs/_build docs/reference *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Made or refused with one line; runs each time, so that a wrong Python is noticed.
venv:
	@sh scripts/venv.sh

# Each stamp is the time of an installation: nothing is installed again until pyproject.toml changes.
$(VENV)/.installed: pyproject.toml | venv
	@sh scripts/install.sh .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | venv
	@sh scripts/install.sh ".[test]"
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | venv
	@sh scripts/install.sh ".[docs]"
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: pyproject.toml | venv
	@sh scripts/install.sh ".[dev]"
	@touch $@ $(VENV)/.installed $(VENV)/.installed-test
