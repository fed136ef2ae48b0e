# Every target sets itself up: `make demo` or `make test` on a fresh clone is enough.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
EXTRAS := train,viewer,robotics,interop,notebook,dev
PYTEST := $(RUN)/python -m pytest
WORKERS ?= 2

# Whatever the tools keep between runs stays inside the checkout.
CACHE := $(CURDIR)/$(VENV)/cache
export XDG_CACHE_HOME := $(CACHE)
export MPLCONFIGDIR := $(CACHE)/matplotlib
export IPYTHONDIR := $(CACHE)/ipython
export JUPYTER_CONFIG_DIR := $(CACHE)/jupyter
export JUPYTER_DATA_DIR := $(CACHE)/jupyter
export JUPYTER_RUNTIME_DIR := $(CACHE)/jupyter

.PHONY: setup demo test test-slow bench lint format clean
.DEFAULT_GOAL := setup

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "robolearn needs Python 3.10 to 3.13, and there is no $(PYTHON): apt install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' || { \
	  echo "robolearn needs Python 3.10 to 3.13, and $(PYTHON) is $$($(PYTHON) -V 2>&1); choose another: make PYTHON=python3.11 $(or $(MAKECMDGOALS),setup)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make a virtual environment: apt install python3-venv (or python3.N-venv for its version)" >&2; exit 1; }
	test -x $(RUN)/python || $(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --no-cache-dir --disable-pip-version-check \
	  --constraint constraints.txt --editable ".[$(EXTRAS)]"
	@touch $@

demo: setup
	$(RUN)/robolearn demo

test: setup
	$(PYTEST) -n $(WORKERS)

test-slow: setup
	$(PYTEST) -m slow

bench: setup
	$(RUN)/python -m benchmarks

lint: setup
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/basedpyright

format: setup
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info
