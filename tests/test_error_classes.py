"""Errors and warnings of our own: one base each beside Python's, exported, and shown under the public name."""

from __future__ import annotations

import ast
import pickle
import traceback
import types
import warnings
from pathlib import Path

import pytest
from helpers import renamed_classes

import bushel
from bushel import BushelDeprecationWarning, BushelError, BushelWarning, MapDataset, MultiprocessingOptions
from bushel._src.engine.pool import wire
from bushel._src.engine.pool.results import _reduce_exception
from bushel._src.inspection.benchmark import measure_pipeline

INSIDE = {"Aborted", "Closed", "FailedAt", "Misfit", "NotUnderstood", "RowFailed"}
"""Exceptions that never leave Bushel."""
SOURCE = Path(bushel.__file__).parent


def is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


@pytest.fixture(scope="module")
def modules() -> list[types.ModuleType]:
    pytest.importorskip("jax")
    return renamed_classes.load_all()


def exceptions(modules: list[types.ModuleType]) -> set[type[BaseException]]:
    """The exception classes that our modules define, by their files: some show another module."""
    found = set()
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, BaseException) and value.__module__.startswith("bushel"):
                found.add(value)
    return found


def test_each_exception_is_one_of_ours_and_one_of_pythons_and_is_exported(modules):
    found = {kind for kind in exceptions(modules) if not kind.__name__.startswith("_")}
    left = {kind for kind in found if kind.__name__ not in INSIDE}
    assert {kind.__name__ for kind in found} >= INSIDE | {"StateMismatch", "BadTrajectory", "DamagedFile"}
    for kind in left:
        base = BushelWarning if issubclass(kind, Warning) else BushelError
        assert issubclass(kind, base), kind
        of_python = {above for above in kind.__mro__ if above.__module__ == "builtins"} - {
            BaseException,
            Exception,
            object,
        }
        assert of_python or kind is BushelError, kind
        public = {"bushel": bushel, "bushel.trajectory": bushel.trajectory}[kind.__module__]
        assert kind.__name__ in public.__all__ and getattr(public, kind.__name__) is kind
        assert kind.__qualname__ == kind.__name__
    assert len(left) > 15


def test_no_module_defines_an_exception_of_python_alone():
    """Also in modules that are not loaded here: an exception without a base of ours is private or stays inside."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_") or node.name in INSIDE:
                continue
            bases = [ast.unparse(base) for base in node.bases]
            of_python = [base for base in bases if base.endswith(("Error", "Exception"))]
            if of_python and "view" not in path.parts and node.name != "BushelError":
                assert "BushelError" in bases or set(bases) & {"WorkerDied", "StateMismatch"}, f"{path}: {node.name}"


def test_each_warning_is_one_of_ours():
    calls = 0
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn":
                calls += 1
                category = ast.unparse(node.args[1]) if len(node.args) > 1 else "none"
                assert category in ("BushelWarning", "BushelDeprecationWarning"), f"{path}:{node.lineno}"
    assert calls > 20


def test_a_traceback_shows_the_public_name():
    state = iter(MapDataset.range(5)).get_state()
    with pytest.raises(bushel.StateMismatch) as caught:
        iter(MapDataset.range(6)).set_state(state)
    assert "\nbushel.StateMismatch: This state belongs to another pipeline" in "".join(
        traceback.format_exception(caught.value)
    )


@pytest.mark.parametrize("name", [name for name in bushel.__all__ if is_exception(getattr(bushel, name))])
def test_errors_are_pickled_by_their_public_names(name):
    kind = getattr(bushel, name)
    error = pickle.loads(pickle.dumps(kind("what was wrong")))
    assert type(error) is kind and error.args == ("what was wrong",)
    sent = pickle.loads(wire.dumps(kind("sent by a worker"), reduce_first=_reduce_exception))
    assert type(sent) is kind and str(sent) == "sent by a worker"


def hang(element: int) -> int:
    import threading

    if element == 3:
        threading.Event().wait()
    return element


def test_a_timeout_is_a_timeout_error():
    ds = MapDataset.range(6).map(hang).to_iter_dataset()
    with iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=1, timeout_s=0.3))) as it:
        assert [next(it) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(TimeoutError, match=r"took longer than timeout_s=0\.3 s, twice\.") as caught:
            next(it)
    assert isinstance(caught.value, bushel.WorkerTimeout) and isinstance(caught.value, bushel.WorkerDied)


def test_a_timeout_without_workers_is_warned_of_where_it_was_written():
    with pytest.warns(BushelWarning, match=r"timeout_s=0\.2 has no effect: it needs workers.*num_workers=4") as caught:
        MultiprocessingOptions(timeout_s=0.2)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MultiprocessingOptions(2, timeout_s=0.2)
        MultiprocessingOptions(None, timeout_s=0.2)


def test_the_benchmark_runs_a_pipeline_with_a_timeout_without_workers_too():
    ds = MapDataset.range(50).to_iter_dataset().mp_prefetch(MultiprocessingOptions(1, timeout_s=30))
    found = measure_pipeline(ds, "a pipeline", workers=[0], seconds=0.05, progress=False)
    assert [run.workers for run in found.runs] == [0]


def test_grains_deprecations_are_ours_too():
    with pytest.warns(BushelDeprecationWarning, match="Please use `mp_prefetch` instead"):
        MapDataset.range(3).to_iter_dataset().prefetch(MultiprocessingOptions())
