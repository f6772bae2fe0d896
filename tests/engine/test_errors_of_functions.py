"""Errors of the user's functions in workers: their type, text and place are those that the consumer would see."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

import cloudpickle
import pytest
from helpers.error_text import notes_of
from helpers.processes import run_script
from helpers.waiting import read_in_time
from helpers.worker_faults import AlwaysAt, OnceAt, raising
from helpers.worker_pools import numbers, open_on, worker_pool

import bushel
from bushel._src.engine.pool.jobs import ResultBuffer
from bushel.experimental import set_next_index

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


class Wrong(Exception):
    """An error of the user's own."""


def fail_at_23(x: int) -> int:
    if x == 23:
        raise Wrong(f"I cannot take {x}")
    return x


WHERE = {
    "map": lambda: bushel.MapDataset.range(100).shuffle(seed=3).map(fail_at_23).to_iter_dataset(),
    "map of a stream": lambda: bushel.MapDataset.range(100).shuffle(seed=3).to_iter_dataset().map(fail_at_23),
    "random_map after a filter": lambda: (
        bushel.MapDataset.range(100)
        .shuffle(seed=3)
        .to_iter_dataset()
        .filter(lambda x: x % 5)
        .random_map(lambda x, rng: fail_at_23(x), seed=1)
    ),
    "filter": lambda: bushel.MapDataset.range(100).shuffle(seed=3).to_iter_dataset().filter(fail_at_23),
}


@pytest.mark.parametrize("where", WHERE)
def test_an_error_has_its_type_and_says_function_element_record_and_worker(where):
    with open_on(WHERE[where](), None) as it, pytest.raises(Wrong):
        list(it)
    place = it.get_state()
    position = place.get("next_index", place.get("parent", {}).get("next_index"))
    with worker_pool() as executor, open_on(WHERE[where](), executor) as it:
        errors = []
        for _ in range(2):
            with pytest.raises(Wrong) as caught:
                list(it)
            errors.append(caught.value)
            assert str(caught.value) == "I cannot take 23"
            assert it.get_state() == place
        told = notes_of(errors[-1])
        assert f"{where.split()[0]}(" in told and "failed at its element" in told
        assert f"element {position}" in told
        assert "record 23 of range(100)" in told
        processes = [int(word.rstrip(".:")) for word in told.partition("in worker process ")[2].split()[:1]]
        assert set(processes) <= set(executor.pids()) and processes
        frames = traceback.extract_tb(errors[-1].__traceback__)
        assert (frames[-1].filename, frames[-1].name) == (__file__, "fail_at_23")
        assert frames[-1].line is not None and frames[-1].line.startswith("raise Wrong(f")
        assert os.path.dirname(bushel.__file__) not in told
        assert told.count("record 23") == 1 and told.count("in worker process") == 1


def test_elements_before_an_error_are_there_and_those_after_it_too():
    with worker_pool() as executor, open_on(numbers(100).map(fail_at_23), executor) as it:
        assert list(itertools.islice(it, 23)) == list(range(23))
        with pytest.raises(Wrong):
            next(it)
        set_next_index(it, 24)
        assert list(it) == list(range(24, 100))


def test_an_error_that_passes_is_gone_at_the_next_try(tmp_path):
    def fail() -> None:
        raise OSError("for a moment")

    with worker_pool() as executor, open_on(numbers(100).map(OnceAt(tmp_path, 50, fail)), executor) as it:
        found: list[int] = []
        with contextlib.suppress(OSError):
            found.extend(it)
        found += it
    # A function that fails is run again to find the element at fault: by then it may have mended.
    assert found == list(range(100))


class HoldsALock(Exception):
    def __init__(self, message: str):
        super().__init__(message)
        self.lock = threading.Lock()
        self.message = message


class TakesTwo(ValueError):
    """Pickles well, and cannot be built again."""

    def __init__(self, path: str, why: str):
        super().__init__(f"{path}: {why}")
        self.path = path


class SaysMore(Exception):
    """Pickles well, and says something else when it was built again."""

    def __init__(self, path: str, why: str = "unknown"):
        super().__init__(f"{path}: {why}")


class NamedOnly(KeyError):
    def __init__(self, *, key: str):
        super().__init__(key, "is missing")


class OfTheSystem(OSError):
    def __init__(self, path: str, why: str, number: int):
        super().__init__(number, why, path)
        self.path = path


class Unnamed(Exception):
    """Builds itself without arguments that are kept."""

    def __new__(cls, one: int, two: int) -> Any:
        return super().__new__(cls, one)

    def __init__(self, one: int, two: int):
        self.two = two

    def __str__(self) -> str:
        return f"{self.args} and {self.two}"


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Refuses attributes, so notes too."""

    code: int


HOME = os.getpid()


class OnlyThere(Exception):
    """Can be built in a worker and not at home."""

    def __reduce__(self) -> Any:
        return _only_there, (HOME,)


def _only_there(home: int) -> OnlyThere:
    if os.getpid() == home:
        raise OSError("not here")
    return OnlyThere()


class CannotBeShown(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raise_one(error: Any) -> Any:
    def fail(x: int) -> int:
        if x == 5:
            raise error()
        return x

    return fail


ERRORS = {
    "plain": lambda: ValueError("x", 3),
    "takes two": lambda: TakesTwo("a.jpg", "truncated"),
    "says more": lambda: SaysMore("a.jpg", "truncated"),
    "by name only": lambda: NamedOnly(key="x"),
    "of the system": lambda: OfTheSystem("a.jpg", "gone", 5),
    "with its own __new__": lambda: Unnamed(1, 2),
    "a frozen dataclass": lambda: Frozen(7),
    "of a decoder": lambda: UnicodeDecodeError("utf-8", b"abc", 0, 1, "odd"),
    "of json": lambda: json.JSONDecodeError("odd", "text", 1),
    "a group": lambda: ExceptionGroup("several", [ValueError(1), TakesTwo("b.jpg", "empty")]),
}


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_is_the_same_with_workers_and_without(error):
    caught = []
    with worker_pool() as executor:
        for where in (None, executor):
            with open_on(numbers(9).map(raise_one(ERRORS[error])), where) as it:
                assert list(itertools.islice(it, 5)) == list(range(5))
                with pytest.raises(Exception) as info:
                    next(it)
                caught.append(info.value)
    here, there = caught
    assert type(there) is type(here)
    assert str(there) == str(here)
    attributes = [{k: v for k, v in vars(error).items() if k != "__notes__"} for error in caught]
    assert attributes[0] == attributes[1]
    if error == "a group":
        assert repr(there) == repr(here)
    else:
        assert there.args == here.args
    if error == "of the system":
        assert (there.errno, there.strerror, there.filename) == (5, "gone", "a.jpg")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_that_cannot_be_shown_can_be_skipped(num_workers, caplog):
    ds = bushel.MapDataset.range(9).map(raise_one(CannotBeShown)).to_iter_dataset().with_options(on_error="skip")
    with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers))) as it:
        assert list(it) == [0, 1, 2, 3, 4, 6, 7, 8]
    assert "CannotBeShown: (its `__str__` failed)" in caplog.text


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_that_refuses_attributes_has_its_notes_and_can_be_skipped(num_workers):
    ds = bushel.MapDataset.range(9).map(raise_one(lambda: Frozen(7))).to_iter_dataset()
    with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers))) as it, pytest.raises(Frozen) as info:
        list(it)
    assert info.value.code == 7
    assert "failed at its element 5" in notes_of(info.value) and "element 5 of the output" in notes_of(info.value)
    skipping = ds.with_options(on_error="skip")
    with iter(skipping.mp_prefetch(bushel.MultiprocessingOptions(num_workers))) as it:
        assert list(it) == [0, 1, 2, 3, 4, 6, 7, 8]


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (lambda: HoldsALock("held tight"), HoldsALock, "held tight"),
        (lambda: ValueError(threading.Lock()), ValueError, "<unlocked"),
        (
            lambda: ValueError(1, threading.Lock()),
            RuntimeError,
            "could not be sent. It said:\nValueError: (1, <unlocked",
        ),
        (CannotBeShown, CannotBeShown, ""),
        (OnlyThere, RuntimeError, "could not be sent. It said:\n"),
    ],
    ids=["holds a lock", "is made of a lock", "is made of a lock and more", "cannot be shown", "only there"],
)
def test_an_error_that_cannot_be_sent_is_described(error, kind, said):
    with worker_pool() as executor, open_on(numbers(9).map(raise_one(error)), executor) as it:
        assert list(itertools.islice(it, 5)) == list(range(5))
        for _ in range(2):
            with pytest.raises(kind) as caught:
                next(it)
            text = f"{BaseException.__str__(caught.value)}\n{notes_of(caught.value)}"
            assert said in text
            assert "record 5 of range(9)" in text
            assert "in worker process" in text
            if kind is HoldsALock:
                assert caught.value.message == said and "lock could not be sent" in text


class Stop(BaseException):
    """No Exception, so that nobody takes it for one."""


class Own(bushel.DatasetIterator[int]):
    """A stream of a user's own, which fails at an element."""

    def __init__(self, error: Any):
        super().__init__()
        self.row, self.error = 0, error

    def __next__(self) -> int:
        if self.row == 20:
            raise self.error()
        self.row += 1
        return self.row - 1

    def get_state(self) -> dict[str, Any]:
        return {"row": self.row}

    def set_state(self, state: dict[str, Any], *, check: bool = True) -> None:
        self.row = state["row"]


class OfOwn(bushel.IterDataset[int]):
    def __init__(self, error: Any):
        super().__init__()
        self.error = error

    def __iter__(self) -> Own:
        return Own(self.error)


STOPPED = {
    "map": lambda error: numbers(100).map(AlwaysAt(40, raising(error))),
    "batches": lambda error: numbers(100).map(AlwaysAt(40, raising(error))).batch(6).map(lambda x: x.tolist()),
    "counted": lambda error: (
        numbers(100).filter(lambda x: x % 3).map_with_index(lambda i, x: (i, x)).map(AlwaysAt((26, 40), raising(error)))
    ),
    "a stream run whole": lambda error: bushel.IterDataset.mix([OfOwn(error), OfOwn(error)]),
}


@pytest.mark.parametrize("stream", STOPPED)
@pytest.mark.parametrize("error", [Stop, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_errors_that_are_no_Exception_are_raised_at_their_element(stream, error, capfd):
    def read(it: Any) -> list[Any]:
        found = []
        while True:
            try:
                found.append(next(it))
            except error:
                return found

    with open_on(STOPPED[stream](error), None) as it:
        expected = read(it)
        assert len(expected) > 5
    with worker_pool() as executor, open_on(STOPPED[stream](error), executor) as it:
        pids = executor.pids()
        assert read(it) == expected
        with pytest.raises(error):
            next(it)
        assert executor.pids() == pids
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("code", [3, None, "bye"])
@pytest.mark.parametrize("in_workers", [False, True])
def test_a_function_that_calls_sys_exit_ends_the_program_and_no_worker(in_workers, code, on_error, capfd):
    ds = numbers(90).map(AlwaysAt(5, lambda: sys.exit(code))).with_options(on_error=on_error)
    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(worker_pool()) if in_workers else None
        it = stack.enter_context(open_on(ds, executor))
        assert list(itertools.islice(it, 5)) == list(range(5))
        for _ in range(2):  # it stands where it stood, and is not skipped
            with pytest.raises(SystemExit) as caught:
                next(it)
            assert caught.value.code == code
            assert "bushel: raised while element 5 of the output was computed." in notes_of(caught.value)
        assert it.skipped == 0
        assert executor is None or executor.report().deaths == 0
    assert capfd.readouterr() == ("", "")


def test_a_program_whose_function_calls_sys_exit_in_a_worker_ends_with_that_code(tmp_path):
    script = """
        import sys
        import bushel

        def leave(x):
            return sys.exit(7) if x == 30 else x

        if __name__ == "__main__":
            ds = bushel.MapDataset.range(100).map(leave).to_iter_dataset()
            for x in ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2)):
                print(x)
    """
    code, out, err = run_script(tmp_path, script)
    assert (code, out.split(), err) == (7, [str(x) for x in range(30)], "")


def test_a_worker_whose_signal_handler_calls_sys_exit_is_replaced(tmp_path):
    """The signal came from outside: the element that the worker happened to compute has nothing to do with it."""

    def die_by_signal(x: int) -> int:
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
        return OnceAt(tmp_path, 37, lambda: os.kill(os.getpid(), signal.SIGUSR1))(x)

    with worker_pool() as executor, open_on(numbers(100).map(die_by_signal), executor) as it:
        assert list(it) == list(range(100))
        assert executor.report().deaths == 1


def test_an_error_keeps_its_type_if_its_cause_cannot_be_sent():
    def fail(x: int) -> int:
        try:
            raise HoldsALock("below")
        except HoldsALock as below:
            raise Wrong("above") from below

    with worker_pool() as executor, open_on(numbers(9).map(fail), executor) as it:
        with pytest.raises(Wrong, match="above") as caught:
            next(it)
        assert "record 0 of range(9)" in notes_of(caught.value)


def test_the_cause_of_an_error_is_sent_too():
    def fail(x: int) -> int:
        try:
            return {}["missing"]
        except KeyError as error:
            raise Wrong("above") from error

    with worker_pool() as executor, open_on(numbers(9).map(fail), executor) as it:
        with pytest.raises(Wrong, match="above") as caught:
            next(it)
        assert isinstance(caught.value.__cause__, KeyError)


def test_stop_iteration_of_a_function_does_not_end_the_data():
    with worker_pool() as executor, open_on(numbers(9).map(raise_one(StopIteration)), executor) as it:
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            list(it)
        assert it.get_state()["next_index"] == 5


def test_a_result_that_cannot_be_kept_is_an_error(monkeypatch):
    def fail(*_: Any) -> None:
        raise MemoryError("no room for it")

    monkeypatch.setattr(ResultBuffer, "add_result", fail)
    raises = pytest.raises(MemoryError, match="no room for it")
    with worker_pool(1) as executor, open_on(numbers(20), executor) as it, raises:
        read_in_time(it)
