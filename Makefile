# Everything a fresh clone needs is Python 3.11 or later. `make clean` before changing PYTHON.
PYTHON ?= python3
VENV := .venv
BENCH_VENV := .venv-bench
SERVERS_VENV := .venv-servers
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-all bench bench-check lint types clean

demo: $(VENV)/.jax-installed
	$(VENV)/bin/python examples/digits.py

test: lint types $(SERVERS_VENV)/.installed
	$(VENV)/bin/python -m pytest

test-all: lint types $(SERVERS_VENV)/.installed
	$(VENV)/bin/python -m pytest -m "slow or not slow"

lint: $(VENV)/.test-installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.test-installed
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

# A venv of its own: a package that only the tests need must not change what is measured.
bench: $(BENCH_VENV)/.bench-installed
	$(BENCH_VENV)/bin/python -m benchmarks.run

# The same, compared with the kept table: exit code 1 where a row has become slower by more than a quarter.
bench-check: $(BENCH_VENV)/.bench-installed
	$(BENCH_VENV)/bin/python -m benchmarks.run --check all

clean:
	rm -rf $(VENV) $(BENCH_VENV) $(SERVERS_VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The stamps are newer than pyproject.toml when the venv holds what it asks for.
$(VENV)/.jax-installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP_INSTALL) -e '.[jax]'
	touch $@

$(VENV)/.test-installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP_INSTALL) -e '.[test]'
	touch $(VENV)/.jax-installed $@

$(BENCH_VENV)/.bench-installed: pyproject.toml
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python $(PIP_INSTALL) -e '.[bench]'
	touch $@

# Servers of object stores that the tests start: a venv of their own, since what they need is much and not ours.
$(SERVERS_VENV)/.installed: tests/servers.txt
	$(PYTHON) -m venv $(SERVERS_VENV)
	$(SERVERS_VENV)/bin/python $(PIP_INSTALL) -r tests/servers.txt
	touch $@
