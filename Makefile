# Everything runs in .venv inside this folder, made once; nothing outside is touched.
#
#   make quickstart        install, train a small world model, score it, write runs/quickstart/report.html
#   make quickstart-quick  the same with few steps, to see that all of it works (also: make quickstart QUICK=1)
#   make test              install, run the tests
#   make test-slow         also the tests that take long
#   make lint              what the code has to pass before it is committed
#
# Needs Python 3.11 or newer with pip. Another interpreter: make quickstart PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
# XLA gives a step's buffers back to the system; without huge pages, mapping them anew takes a seventh of a step.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

.PHONY: help quickstart quickstart-quick test test-slow lint clean

help:
	@sed -n 's/^#   //p' Makefile

quickstart: $(VENV)/installed
	@$(BIN)/maskworld quickstart $(if $(QUICK),--quick)

quickstart-quick: $(VENV)/installed
	@$(BIN)/maskworld quickstart --quick

test: $(VENV)/installed-dev
	@$(BIN)/python -m pytest -n $(JOBS) $(TESTS)

test-slow: $(VENV)/installed-dev
	@$(BIN)/python -m pytest -n $(JOBS) -m "slow or not slow" $(TESTS)

lint: $(VENV)/installed-dev
	@$(BIN)/ruff check src tests experiments
	@$(BIN)/ruff format --check src tests experiments

clean:
	rm -rf $(VENV)

# Debian splits ensurepip off: where it is missing, pip installs itself into the new environment from outside.
$(BIN)/python:
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "maskworld needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 \
		|| { rm -rf $(VENV) && $(PYTHON) -m venv --without-pip $(VENV) \
			&& $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }

$(VENV)/installed: pyproject.toml | $(BIN)/python
	@echo "installing maskworld and what it needs into $(VENV) (once, about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	@echo "installing maskworld, what it needs and the test tools into $(VENV) (once, about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/installed
