"""What cannot be sent between processes is an error that names it; classes of scripts and notebooks can be sent."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import sys
import threading
import types
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers.error_text import notes_of
from helpers.processes import run_script, workers
from helpers.waiting import wait_until
from helpers.worker_pools import TWO, numbers, open_on, worker_pool

import bushel
from bushel.experimental import set_next_index

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


UNSENDABLE = {
    "a lock": lambda: threading.Lock(),
    "a generator": lambda: (x for x in ()),
    "a lock in a tree": lambda: {"x": np.zeros(10_000), "y": [threading.Lock()]},
}


@pytest.mark.parametrize("what", UNSENDABLE)
@pytest.mark.parametrize("at", [0, 41])
def test_an_element_that_cannot_be_sent_is_an_error_and_not_lost(what, at):
    make = UNSENDABLE[what]
    ds = bushel.MapDataset.range(100).shuffle(seed=1).to_iter_dataset().map(lambda x: (x, None))
    record = [x for x, _ in ds][at]
    bad = ds.map(lambda pair: make() if pair[0] == record else pair)
    with worker_pool() as executor, open_on(bad, executor) as it:
        assert [x for x, _ in itertools.islice(it, at)] == [x for x, _ in ds][:at]
        state = it.get_state()
        for _ in range(2):
            with pytest.raises(TypeError, match=f"element {at} of the output cannot be sent from a worker process"):
                next(it)
            assert it.get_state() == state
        set_next_index(it, at + 1)
        assert [x for x, _ in it] == [x for x, _ in ds][at + 1 :]


def test_a_batch_that_cannot_be_sent_is_an_error_and_not_lost():
    ds = numbers(40).batch(4).map(lambda x: threading.Lock() if x[0] == 20 else x.tolist())
    with worker_pool() as executor, open_on(ds, executor) as it:
        assert [x[0] for x in itertools.islice(it, 5)] == [0, 4, 8, 12, 16]
        with pytest.raises(TypeError, match="cannot be sent from a worker process"):
            next(it)
        set_next_index(it, 6)
        assert [x[0] for x in it] == [24, 28, 32, 36]


class Unreadable:
    """Pickles well, and cannot be built again."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_an_element_that_cannot_be_rebuilt_is_an_error():
    ds = numbers(60).map(lambda x: Unreadable() if x == 50 else x)
    with worker_pool() as executor, open_on(ds, executor) as it:
        found: list[int] = []
        with pytest.raises(ValueError, match="no number") as info:
            found.extend(it)
        assert found == list(range(50))
        assert "element 50 of the output could not be rebuilt" in notes_of(info.value)
        with pytest.raises(ValueError, match="no number"):
            list(it)
        set_next_index(it, 51)
        assert list(it) == list(range(51, 60))


@pytest.mark.parametrize("random", [False, True])
def test_an_element_that_cannot_be_rebuilt_can_be_skipped(random):
    def unreadable(x: int, *_: Any) -> Any:
        return Unreadable() if x % 20 == 7 else x

    ds = numbers(60).filter(lambda x: x % 3)
    ds = ds.random_map(unreadable, seed=1) if random else ds.map(unreadable)  # the one asks how many came before
    with worker_pool() as executor, open_on(ds.with_options(on_error="skip"), executor) as it:
        assert list(it) == [x for x in range(60) if x % 3 and x % 20 != 7]
        assert it.skipped == 2  # 27 was filtered out


def test_lambdas_and_local_classes_can_be_sent():
    class Local:
        def __init__(self, x: int):
            self.x = x

    ds = numbers(20).map(lambda x: (Local(x), lambda: x))
    with worker_pool() as executor, open_on(ds, executor) as it:
        for number, (local, function) in enumerate(it):
            assert type(local) is Local and local.x == function() == number


def test_classes_made_in_workers_can_be_sent():
    """Each block brings its own: the consumer may have let go of those before, or never have looked at them."""

    def make(x: int) -> Any:
        import builtins

        if not hasattr(builtins, "bushel_made"):
            builtins.bushel_made = type("Made", (), {"twice": lambda self: 2 * self.x})
        made = builtins.bushel_made()
        made.x = x
        return made

    with worker_pool() as executor, open_on(numbers(300).map(make), executor) as it:
        it.start_prefetch()
        for number in range(300):
            if number in (0, 5, 50, 100):
                wait_until(lambda: not any(worker.jobs for worker in executor._supervisor.workers))
                it.set_state(it.get_state())  # what was computed ahead is never looked at
                with open_on(numbers(10), executor) as other:  # and workers load another pipeline
                    assert list(other) == list(range(10))
            assert next(it).twice() == 2 * number
            if number % 40 == 0:
                gc.collect()


def test_objects_of_a_class_that_the_consumer_has_replaced_can_be_sent(tmp_path):
    script = """
        import gc
        import bushel

        class Thing:
            def __init__(self, x): self.x = x
            def old(self): return self.x

        ds = bushel.MapDataset.range(300).map(lambda x: Thing(x)).to_iter_dataset()
        it = iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2)))
        next(it)

        class Thing:  # as in a notebook, where a cell is run again
            pass

        gc.collect()
        found = []
        for thing in it:
            found.append(thing.old())
            gc.collect(0)
        print(found == list(range(1, 300)))
    """
    assert run_script(tmp_path, script) == (0, "True\n", "")


class HasALock:
    """A source that cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        return index


lock = threading.Lock()


def holds_a_lock(x: int) -> Any:
    return x if lock else None


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: numbers(5).map(lambda x: x).map(holds_a_lock).batch(2), r"map\(holds_a_lock\)"),
        (lambda: bushel.MapDataset.range(5).filter(holds_a_lock).to_iter_dataset(), r"filter\(holds_a_lock\)"),
        (lambda: bushel.MapDataset.source(HasALock()).map(lambda x: x).to_iter_dataset(), "HasALock"),
        (lambda: numbers(5).batch(2, batch_fn=holds_a_lock), r"batch\(2, batch_fn=holds_a_lock\)"),
    ],
    ids=["map", "filter of a MapDataset", "source", "batch_fn"],
)
def test_a_pipeline_that_cannot_be_sent_is_an_error_that_names_the_operation(make, named):
    with iter(make().mp_prefetch(TWO)) as it:
        for _ in range(2):
            with pytest.raises(bushel.PipelineNotSent, match=f"{named}.* cannot be sent to worker processes"):
                next(it)


def test_a_worker_init_fn_that_cannot_be_sent_is_an_error():
    before = workers()
    with pytest.raises(bushel.PipelineNotSent, match="worker_init_fn cannot be sent"):
        iter(numbers(5).mp_prefetch(TWO, worker_init_fn=lambda index, count: lock.acquire()))
    assert workers() <= before


def test_a_function_of_a_module_that_workers_cannot_import_names_the_way_out(monkeypatch):
    module = types.ModuleType("json.of_no_folder")
    exec("def double(x):\n    return 2 * x", vars(module))
    monkeypatch.setitem(sys.modules, "json.of_no_folder", module)
    ds = numbers(5).map(lambda x: x).map(module.double)
    with iter(ds.mp_prefetch(TWO)) as it:
        for _ in range(2):
            with pytest.raises(ModuleNotFoundError) as caught:
                next(it)
            (way_out,) = [note for note in caught.value.__notes__ if "workers cannot import" in note]
            assert way_out.startswith("bushel: map(double) needs json.of_no_folder, which workers cannot import.")
            assert "cloudpickle.register_pickle_by_value" in way_out
    cloudpickle.register_pickle_by_value(module)
    with iter(ds.mp_prefetch(TWO)) as it:
        assert list(it) == [0, 2, 4, 6, 8]
    cloudpickle.unregister_pickle_by_value(module)


LOADED = """
import of_another_file

SCALE = 2

class Scaled:
    def __init__(self, x):
        self.x = x

def scaled(x):
    return Scaled(SCALE * x + of_another_file.ONE)

def value(scaled):
    return scaled.x if isinstance(scaled, Scaled) else "another class"

def told(index, count):
    import bushel._src.base.options
    bushel._src.base.options.told = SCALE
"""


@pytest.mark.parametrize("name", ["of_no_folder", "colorsys", "of_no_folder.at_all"])
def test_modules_that_were_loaded_from_a_file_are_sent_to_workers(name, tmp_path, monkeypatch):
    def loaded(name, text):
        path = tmp_path / f"{name} here.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    other = loaded("of_another_file", "ONE = 1")
    module = loaded(name, LOADED)
    try:
        ds = numbers(5).map(module.scaled).map(module.value)
        with iter(ds.mp_prefetch(TWO, worker_init_fn=module.told)) as it:
            assert list(it) == [1, 3, 5, 7, 9]
        with iter(numbers(2).map(module.scaled).mp_prefetch(TWO)) as it:
            assert [type(element) for element in it] == [module.Scaled] * 2
    finally:
        for one in (other, module):
            cloudpickle.unregister_pickle_by_value(one)


class Unloadable:
    """A function that pickles and cannot be built again."""

    def __call__(self, x: int) -> int:
        return x

    def __reduce__(self) -> Any:
        return int, ("no function",)


def test_a_pipeline_that_cannot_be_loaded_is_an_error():
    with iter(numbers(5).map(Unloadable()).mp_prefetch(TWO)) as it:
        for _ in range(2):
            with pytest.raises(Exception, match=r"no function|have ended"):
                next(it)


def test_classes_of_the_main_script_stay_as_they_are(tmp_path):
    script = """
        import collections, dataclasses, enum
        import bushel

        class Plain:
            registry = []
            mode = "old"
            def __init__(self, x): self.x = x

        @dataclasses.dataclass(frozen=True)
        class Data:
            x: int

        class Colour(enum.Enum):
            RED = 1

        Pair = collections.namedtuple("Pair", "x y")
        Other = collections.namedtuple("NotItsName", "x")

        class Outer:
            class Inner:
                pass

        class Mine(Exception):
            pass

        def make(x):
            if x == 150:
                error = Mine("mine")
                error.function = lambda: 7
                raise error
            return Plain(x), Data(x), Colour.RED, Pair(x, x), Other(x), Outer.Inner()

        ds = bushel.MapDataset.range(300).map(make).to_iter_dataset()
        it = iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2)))
        next(it)
        Plain.mode, mine, method = "new", Plain.registry, Plain.__init__
        Plain.registry.append(1)
        try:
            for number, (plain, data, colour, pair, other, inner) in enumerate(it, 1):
                assert type(plain) is Plain and plain.x == number
                assert type(data) is Data and data == Data(number)
                assert colour is Colour.RED
                assert type(pair) is Pair and pair == (number, number)
                assert type(other) is Other and other.x == number
                assert type(inner) is Outer.Inner
        except Mine as error:
            print(number, type(error) is Mine, error, error.function())
        print(Plain.mode, Plain.registry, Plain.registry is mine, Plain.__init__ is method, __name__)
    """
    code, out, err = run_script(tmp_path, script)
    assert err == ""
    assert code == 0
    assert out.splitlines() == ["149 True mine 7", "new [1] True True __main__"]


def test_the_main_script_is_not_run_again(tmp_path):
    script = """
        import bushel
        print("once", flush=True)
        ds = bushel.MapDataset.range(5).map(lambda x: x * x).to_iter_dataset()
        print(list(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))))
    """
    assert run_script(tmp_path, script) == (0, "once\n[0, 1, 4, 9, 16]\n", "")
