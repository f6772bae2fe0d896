"""Hypothesis draws the same cases in every run of `make test`, and new ones in every run of `make test-all`.

A case may take as long as it likes: a busy machine is no failure. Caches lie in folders that are new for every run,
or a later run would test what an earlier one has kept.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import tracemalloc  # noqa: F401  # pytest imports it while it handles a warning, and a second warning then fails
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("new", derandomize=False, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    quick = config.option.markexpr.startswith("not slow")
    settings.load_profile("same" if quick else "new")
    if quick:
        compile_quickly()
    share_compiled_functions(config)
    # A shell lets programs that it starts with `&` ignore Ctrl-C, and so would the programs that tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def compile_quickly() -> None:
    """Let JAX compile with fewer optimizations: a third of the time of its tests. `make test-all` has all of them.

    JAX reads the variable when it begins, and child processes inherit it.
    """
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    if flags not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()


def share_compiled_functions(config: pytest.Config) -> None:
    """Let the processes of one run share what JAX compiles: pytest's workers, and the programs that tests start.

    The folder is new for every run. JAX reads the variables when it is imported, and child processes inherit them.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # set already in a worker of pytest, or by the user
        folder = tempfile.mkdtemp(prefix="bushel-tests-jax-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


def pytest_collection_finish() -> None:
    """Take the modules and tests that are loaded by now out of garbage collection.

    They are a million objects that live until the end. Otherwise each `gc.collect()` in a test walks over them.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BUSHEL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


JOBS = (
    "bushel._src.datasets.cluster_jobs.",
    "bushel._src.sources.conversion.",
    "bushel._src.sources.folders.",
    "bushel._src.trajectory.conversion_table.",
    "bushel._src.trajectory.episode_conversion.",
    "bushel._src.trajectory.episode_targets.",
    "bushel._src.trajectory.video_encoding.",
)
"""Modules whose objects are in pipelines that live as long as one conversion on a cluster. No state is kept of them."""


@pytest.fixture(autouse=True)
def constants_for_digests() -> Iterator[None]:
    """Refuse a test in which a private name of ours has reached a digest: `in_states` gives the class a constant."""
    state_names = sys.modules.get("bushel._src.base.state_names")
    if state_names is not None:
        state_names.unnamed.clear()
    yield
    state_names = sys.modules.get("bushel._src.base.state_names")
    names = set() if state_names is None else state_names.unnamed
    private = {name for name in names if not is_exported(name) and not name.startswith(JOBS)}
    assert not private, f"These names of ours reach a digest without a constant: {sorted(private)}."


def is_exported(name: str) -> bool:
    """Whether a public module exports the class or function with this full name; also of what a doctest defines."""
    module = name.rpartition(".")[0]
    while module not in sys.modules:
        module = module.rpartition(".")[0]
    first, _, rest = name[len(module) + 1 :].partition(".")
    value = vars(sys.modules[module]).get(first)
    if value is None:
        return True  # a doctest has defined it
    package, _, last = module.rpartition(".")
    is_public = last in getattr(sys.modules.get(package), "__all__", ()) and not hasattr(sys.modules[module], "__all__")
    if is_public and not first.startswith("_"):
        return True
    loaded = [found for name, found in list(sys.modules.items()) if name.partition(".")[0] == "bushel"]
    exporting = [found for found in loaded if first in getattr(found, "__all__", ())]
    return not rest and any(getattr(found, first) is value for found in exporting)
