# Everything a fresh clone needs is Python 3.11 or later. `make clean` before changing PYTHON.
PYTHON ?= python3
VENV := .venv
BENCH_VENV := .venv-bench
SERVERS_VENV := .venv-servers
LIBRARIES_VENV := .venv-libraries
LEROBOT_VENV := .venv-lerobot
CORE_VENV := .venv-core
OLDEST_VENV := .venv-oldest
NEWEST_VENV := .venv-newest
NEWEST_PYTHON ?= $(shell $(PYTHON) tests/tools/newest.py --python)
RELEASE_VENV := .venv-release
RELEASE_OPTIONS ?=
OLDEST_JIT := $(addprefix tests/jit/test_,cereal.py classes.py compiled.py datasets.py host.py mesh.py order.py sources.py transforms.py)
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

# Tests start hundreds of Python programs. Without files of bytecode, each would compile Bushel and its tests again.
unexport PYTHONDONTWRITEBYTECODE

# One process of pytest more than there are cores, since many tests wait for other processes; four at most, since each
# needs about 2 GB of memory.
PARALLEL := -n $(shell $(PYTHON) -c "import os; n = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1; print(min(4, 1 + n))") --dist worksteal
# Tests that measure the machine run alone. Only their files are named, since loading all test files takes 15 s.
SERIAL_FILES = $(shell grep -rl --include='test_*.py' 'pytest.mark.serial' tests)

.PHONY: demo test serial-tests test-all test-libraries test-lerobot test-core test-oldest test-newest release-check quick bench bench-check bench-peers docs lint types clean parallel-tests all-parallel-tests \
	quick-types quick-tests

demo: $(VENV)/.jax-installed
	$(VENV)/bin/python examples/digits.py

# pyright uses one core. It runs beside the tests that want to be the only ones: they wait most of the time. Make fails
# if either of the two fails.
test: lint $(SERVERS_VENV)/.installed
	$(MAKE) --jobs=2 types serial-tests
	$(MAKE) parallel-tests

serial-tests:
	$(VENV)/bin/python -m pytest -m "not slow and serial" $(SERIAL_FILES)

# Exit code 1 of pytest: tests have failed. If they are few, they run again alone, so that the output says whether they
# fail there, too: see tests/tools/diagnose_failures.py.
parallel-tests:
	$(VENV)/bin/python -m pytest $(PARALLEL) -m "not slow and not serial" || \
		{ [ $$? -eq 1 ] && $(VENV)/bin/python tests/tools/diagnose_failures.py; }

# The tests of what has changed since branch `main`, and pyright on the changed files and on those that import them.
quick: lint $(SERVERS_VENV)/.installed
	$(MAKE) --jobs=2 quick-types quick-tests

quick-types:
	@files=$$($(VENV)/bin/python tests/tools/changed.py --types) && if [ -n "$$files" ]; \
	then set -x; $(VENV)/bin/pyright --pythonpath $(VENV)/bin/python $$files; else echo "No Python file has changed."; fi

# Exit code 5 of pytest: all tests there are marked `slow`.
quick-tests:
	@tests=$$($(VENV)/bin/python tests/tools/changed.py) && if [ -n "$$tests" ]; \
	then set -x; $(VENV)/bin/python -m pytest $(PARALLEL) $$tests || [ $$? -eq 5 ]; else echo "No test belongs to what has changed."; fi

test-all: lint $(SERVERS_VENV)/.installed test-libraries
	$(MAKE) --jobs=2 types all-parallel-tests
	$(VENV)/bin/python -m pytest -m serial $(SERIAL_FILES)
	if $(MAKE) $(LEROBOT_VENV)/.installed; then $(MAKE) test-lerobot; else echo "lerobot cannot be installed here."; fi

all-parallel-tests:
	$(VENV)/bin/python -m pytest $(PARALLEL) -m "not serial"

# The sources that read PyTorch, TFDS and Hugging Face, in a venv of its own: these packages have gigabytes.
test-libraries: $(LIBRARIES_VENV)/.installed
	$(LIBRARIES_VENV)/bin/python -m pytest -m "slow or not slow" tests/sources/test_libraries.py tests/trajectory/test_rlds.py tests/view/test_rerun_export.py \
		tests/test_readme_claims.py

# lerobot's own reader on data sets that Bushel has written.
test-lerobot: $(VENV)/.test-installed $(LEROBOT_VENV)/.installed
	BUSHEL_LEROBOT_PYTHON=$(CURDIR)/$(LEROBOT_VENV)/bin/python \
		$(VENV)/bin/python -m pytest -m slow tests/trajectory/test_convert_episodes.py -k lerobot_reads_it

# The tests that need only the core's packages: NumPy, cloudpickle and tqdm, without any extra.
test-core: $(CORE_VENV)/.installed
	$(CORE_VENV)/bin/python -m pytest $(PARALLEL) -m "not slow and not serial" $(shell cat tests/core.txt)

# The same with the oldest packages that are promised, and the tests of the loader inside jit that need no other package.
test-oldest: $(OLDEST_VENV)/.installed
	$(OLDEST_VENV)/bin/python -m pytest $(PARALLEL) -m "not slow and not serial" $(shell cat tests/core.txt) $(OLDEST_JIT)

# The tests with the newest packages of all extras, on the newest supported Python that is found. The fourth line installs
# what a package that only the tests need holds back.
test-newest: $(SERVERS_VENV)/.installed
	$(NEWEST_PYTHON) -m venv $(NEWEST_VENV)
	$(NEWEST_VENV)/bin/python $(PIP_INSTALL) --upgrade pip
	$(NEWEST_VENV)/bin/python $(PIP_INSTALL) --upgrade --upgrade-strategy eager -e '.[test]'
	$(NEWEST_VENV)/bin/python $(PIP_INSTALL) --upgrade $$($(PYTHON) tests/tools/newest.py)
	$(NEWEST_VENV)/bin/python tests/tools/newest.py --versions
	$(NEWEST_VENV)/bin/python -m pytest $(PARALLEL) -m "not slow and not serial" || \
		{ [ $$? -eq 1 ] && $(NEWEST_VENV)/bin/python tests/tools/diagnose_failures.py; }

# Wheel and sdist as a stranger gets them: see tests/tools/release_check.py.
release-check: $(RELEASE_VENV)/.installed
	$(RELEASE_VENV)/bin/python tests/tools/release_check.py $(RELEASE_OPTIONS)

lint: $(VENV)/.test-installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.test-installed
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

# A venv of its own: a package that only the tests need must not change what is measured. Writes the tables in
# benchmarks/results and README.md, and docs/cost.svg. A missed target does not keep the second program from running.
bench: $(BENCH_VENV)/.bench-installed
	$(BENCH_VENV)/bin/python -m benchmarks.run --repetitions 5 --save all --readme; first=$$?; \
		$(BENCH_VENV)/bin/python -m benchmarks.cost && exit $$first

# The same works on other libraries; writes benchmarks/results/peers.md.
bench-peers: $(BENCH_VENV)/.bench-installed
	$(BENCH_VENV)/bin/python -m benchmarks.peers --save peers

# The same, compared with the kept table: exit code 1 where a row has become slower by more than a quarter.
bench-check: $(BENCH_VENV)/.bench-installed
	$(BENCH_VENV)/bin/python -m benchmarks.run --repetitions 5 --check all

# The site, in docs/_build/html. The tutorials run while it is built; what they gave is kept until they change.
docs: $(VENV)/.docs-installed $(SERVERS_VENV)/.installed
	$(VENV)/bin/python -m sphinx --fail-on-warning --keep-going --jobs auto --quiet docs docs/_build/html
	$(VENV)/bin/python docs/check_site.py docs/_build/html

clean:
	rm -rf $(VENV) $(BENCH_VENV) $(SERVERS_VENV) $(LIBRARIES_VENV) $(LEROBOT_VENV) $(CORE_VENV) $(OLDEST_VENV) $(NEWEST_VENV) $(RELEASE_VENV) build dist docs/_build docs/reference .pytest_cache .ruff_cache .hypothesis
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

$(VENV)/.docs-installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP_INSTALL) -e '.[docs]'
	touch $(VENV)/.jax-installed $@

$(LIBRARIES_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(LIBRARIES_VENV)
	$(LIBRARIES_VENV)/bin/python $(PIP_INSTALL) -e '.[test-libraries]'
	touch $@

$(LEROBOT_VENV)/.installed: tests/lerobot.txt
	$(PYTHON) -m venv $(LEROBOT_VENV)
	$(LEROBOT_VENV)/bin/python $(PIP_INSTALL) -r tests/lerobot.txt
	$(LEROBOT_VENV)/bin/python $(PIP_INSTALL) --no-deps lerobot==0.4.4
	touch $@

$(CORE_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(CORE_VENV)
	$(CORE_VENV)/bin/python $(PIP_INSTALL) -e . hypothesis pytest pytest-timeout pytest-xdist
	touch $@

$(OLDEST_VENV)/.installed: pyproject.toml tests/oldest.txt
	$(PYTHON) -m venv $(OLDEST_VENV)
	$(OLDEST_VENV)/bin/python $(PIP_INSTALL) -e . -r tests/oldest.txt hypothesis pytest pytest-timeout pytest-xdist
	touch $@

$(RELEASE_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python $(PIP_INSTALL) build twine
	touch $@

$(BENCH_VENV)/.bench-installed: pyproject.toml
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python $(PIP_INSTALL) -e '.[bench]'
	touch $@

# Servers of object stores that the tests start: a venv of their own, since what they need is much and not ours.
$(SERVERS_VENV)/.installed: tests/servers.txt
	$(PYTHON) -m venv $(SERVERS_VENV)
	$(SERVERS_VENV)/bin/python $(PIP_INSTALL) -r tests/servers.txt
	touch $@
