"""Caches: read once, valid for one pipeline only, never half full, and no hindrance to resuming."""

from __future__ import annotations

import collections
import errno
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import grain
import numpy as np
import pytest
from helpers import recipes
from helpers.beside_grain import plain, restored, run
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel import MapDataset
from bushel._src.base import checked_files
from bushel._src.graph import cache_stores
from bushel.testing import check_resumes_anywhere, check_same_for_any_executor, same


@pytest.fixture(params=["memory", "files", "files of one element"])
def folder(request, tmp_path, monkeypatch):
    """Where a cache is kept."""
    if request.param == "files of one element":
        monkeypatch.setattr(cache_stores, "CHUNK_ELEMENTS", 1)
    return None if request.param == "memory" else tmp_path / "cache"


class Counting:
    """Doubles, and counts how often."""

    def __init__(self, fails_at=()):
        self.calls, self.left = 0, set(fails_at)

    def __call__(self, x):
        self.calls += 1
        if x in self.left:
            self.left.discard(x)
            raise OSError(f"cannot read {x} now")
        return {"x": np.full(3, 2 * x)}


def cached(function, folder=None, count=10):
    return MapDataset.range(count).to_iter_dataset().map(function).cache(folder)


def numbers(elements):
    return [int(element["x"][0]) // 2 for element in elements]


def test_elements_are_computed_once_for_all_iterators(folder):
    function = Counting()
    ds = cached(function, folder)
    assert [numbers(ds) for _ in range(3)] == [list(range(10))] * 3
    assert function.calls == 10
    assert numbers(ds.repeat(2).batch(5).map(lambda batch: {"x": batch["x"][:, 0]})) == [0, 5, 0, 5]
    assert function.calls == 10


def test_only_a_stream_read_to_its_end_is_kept(folder):
    function = Counting()
    ds = cached(function, folder)
    with iter(ds) as it:
        assert numbers(next(it) for _ in range(7)) == list(range(7))
    assert numbers(ds) == list(range(10))
    assert function.calls == 17
    assert numbers(ds) == list(range(10))
    assert function.calls == 17


def test_iterators_may_fill_a_cache_at_the_same_time(folder):
    ds = cached(Counting(), folder)
    a, b = iter(ds), iter(ds)
    found = [(next(a), next(b)) for _ in range(10)]
    assert next(b, "end") == next(a, "end") == "end"
    assert numbers(one for one, _ in found) == numbers(other for _, other in found) == numbers(ds) == list(range(10))


def test_what_one_changes_is_ones_own(folder):
    ds = cached(Counting(), folder)
    for _ in range(3):
        for element in ds:
            element["x"][:] = -1
            element["y"] = 7
    assert numbers(ds) == list(range(10))
    it = iter(ds)
    assert list(next(it)) == ["x"]


def test_after_an_error_the_pass_goes_on_and_is_kept(folder):
    function = Counting(fails_at=[0, 4, 9])
    ds = cached(function, folder).batch(4)
    it, found, errors = iter(ds), [], 0
    while True:
        try:
            found.append(next(it))
        except OSError:
            errors += 1
        except StopIteration:
            break
    assert errors == 3
    calls = function.calls
    assert same(found, list(ds))
    assert function.calls == calls


class FailsAt:
    def __init__(self, *bad):
        self.bad = bad

    def __call__(self, x):
        if x in self.bad:
            raise ValueError(f"no {x}")
        return x


def counts(ds, **options):
    """How many elements were skipped before each element, and at the end, or too many."""
    found = []
    with iter(ds.with_options(on_error="skip", **options)) as it:
        try:
            for element in it:
                found.append((element, it.skipped, plain(it.get_state())))
            found.append(("end", it.skipped, plain(it.get_state())))
        except bushel.TooManySkipped as error:
            found.append((str(error), it.skipped, plain(it.get_state())))
    return found


@pytest.mark.parametrize("bad", [[0], [3, 4], [9], [0, 5, 8, 9], range(10), []])
def test_a_full_cache_tells_how_many_were_skipped(folder, bad):
    def build():
        return MapDataset.range(10).to_iter_dataset().map(FailsAt(*bad))

    ds, without = build().cache(folder), build()
    for again in (ds, ds, build().cache(folder) if folder else ds):
        for limit in (None, 1, 3):
            assert [told[:2] for told in counts(again, skip_limit=limit)] == [
                told[:2] for told in counts(without, skip_limit=limit)
            ]
    assert counts(ds.repeat(2))[-1][1] == 2 * len(bad)
    whole = counts(ds)
    for element, skipped, state in whole:
        with iter(ds.with_options(on_error="skip")) as it:
            it.set_state(state, check=False)
            assert it.skipped == skipped
            assert len(list(it)) == len(whole) - 1 - [told[0] for told in whole].index(element) - (element != "end")
            assert it.skipped == len(bad)


def test_where_failures_raise_a_cache_without_the_elements_that_failed_is_not_used(folder):
    ds = MapDataset.range(10).to_iter_dataset().map(FailsAt(4)).cache(folder)
    assert list(ds.with_options(on_error="skip")) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    with pytest.raises(ValueError, match="no 4"):
        list(ds)
    assert counts(ds)[-1][:2] == ("end", 1)


def test_a_cache_keeps_the_laws(folder):
    check_resumes_anywhere(cached(recipes.with_weight, folder))
    check_same_for_any_executor(cached(recipes.with_weight, folder))
    check_resumes_anywhere(cached(recipes.with_weight, folder).repeat(3).batch(4))


@settings(deadline=None, max_examples=40)
@given(taken=st.integers(0, 12), later=st.integers(0, 12))
def test_a_state_restores_with_a_full_cache_and_with_none(taken, later):
    def build():
        inner = [MapDataset.range(n, n + 6).to_iter_dataset() for n in (0, 10)]
        return bushel.IterDataset.mix(inner, [2, 1]).cache()

    ds = build()
    whole = run(iter(ds))
    taken = min(taken, len(whole.elements))
    for filled in (ds, build()):
        state = whole.states[taken]
        it = restored(filled, state)
        found = [next(it) for _ in range(min(later, len(whole.elements) - taken))]
        assert found == whole.elements[taken : taken + later]
        # And once more, from a state that came from the cache or not.
        assert run(restored(build(), plain(it.get_state()))).elements == whole.elements[taken + len(found) :]
        assert run(restored(ds, plain(it.get_state()))).states == whole.states[taken + len(found) :]


@settings(deadline=None, max_examples=30)
@given(length=st.integers(1, 6), taken=st.integers(0, 20), epochs=st.integers(1, 3))
def test_states_move_to_grain_and_back(length, taken, epochs):
    def build(lib):
        ds = lib.experimental.CacheIterDataset(lib.MapDataset.range(length).to_iter_dataset(lib.ReadOptions(0, 0)))
        return lib.experimental.RepeatIterDataset(ds, epochs)

    ours, theirs = run(iter(build(bushel))), run(iter(build(grain)))
    assert ours.elements == theirs.elements
    taken %= len(ours.elements) + 1
    assert run(restored(build(bushel), theirs.states[taken])).elements == ours.elements[taken:]
    assert run(restored(build(grain), ours.states[taken])).elements == ours.elements[taken:]
    if epochs == 1:
        assert ours.states == theirs.states


def test_we_differ_a_cache_is_shared_between_iterators():
    def calls(lib):
        function = Counting()
        ds = lib.experimental.CacheIterDataset(lib.MapDataset.range(5).to_iter_dataset().map(function))
        for _ in range(2):
            list(ds)
        return function.calls

    assert calls(grain) == 10
    assert calls(bushel) == 5


# ---------------------------------------------------------------------------------------------------------------------
# Files


def test_another_process_finds_the_files(tmp_path):
    program = textwrap.dedent(
        """
        import bushel, sys
        def slow(x):
            print("computed", x)
            return x * 2
        ds = bushel.MapDataset.range(3).to_iter_dataset().map(slow).cache(sys.argv[1])
        print(list(ds))
        """
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert outputs == ["computed 0\ncomputed 1\ncomputed 2\n[0, 2, 4]\n", "[0, 2, 4]\n"]


def test_another_pipeline_or_other_data_is_not_found(tmp_path):
    records = [1, 2, 3]

    def read(function):
        return list(MapDataset.source(records).to_iter_dataset().map(function).cache(tmp_path))

    assert read(lambda x: x + 1) == [2, 3, 4]
    assert read(lambda x: x + 2) == [3, 4, 5]
    records[0] = 7
    assert read(lambda x: x + 1) == [8, 3, 4]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_process_that_is_killed_leaves_no_cache(tmp_path):
    program = textwrap.dedent(
        """
        import bushel, os, signal, sys
        from bushel._src.graph import cache_stores
        cache_stores.CHUNK_ELEMENTS = 1
        def die(x):
            if x == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return x
        list(bushel.MapDataset.range(5).to_iter_dataset().map(die).cache(sys.argv[1]))
        """
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True)
    assert ended.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".part-") and len(list(left.glob("chunk-*"))) == 3
    ds = cached(Counting(), tmp_path)
    assert numbers(ds) == numbers(ds) == list(range(10))
    (kept,) = tmp_path.iterdir()  # what was left is gone
    assert not kept.name.startswith(".part-")


def begin_recording(tmp_path, *before):
    """A process that has begun to record, and the command to end it: it goes on when its input is closed."""
    program = textwrap.dedent(
        """
        import bushel, sys
        it = iter(bushel.MapDataset.range(5).to_iter_dataset().map(str).cache(sys.argv[1]))
        print(next(it), flush=True)
        sys.stdin.read()
        print(list(it))
        """
    )
    process = subprocess.Popen(
        [*before, sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    return process


OTHER_PROCESS_NUMBERS = [
    *["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "sh", "-c"],
    'echo 4000000 > /proc/sys/kernel/ns_last_pid && "$@"; exit $?',  # a number that no process of the host has
    "sh",
]


def available(command):
    return (
        shutil.which(command[0]) is not None and not subprocess.run([*command, "true"], capture_output=True).returncode
    )


@pytest.mark.parametrize("container", [False, True], ids=["same process numbers", "other process numbers"])
def test_a_recording_is_left_alone_as_long_as_its_process_lives(tmp_path, container):
    before = OTHER_PROCESS_NUMBERS if container else []
    if container and not available(before):
        pytest.skip("process namespaces are not available here")
    recording = begin_recording(tmp_path, *before)
    assert numbers(cached(Counting(), tmp_path)) == list(range(10))
    output, errors = recording.communicate()
    assert (output, errors, recording.returncode) == ("['1', '2', '3', '4']\n", "", 0)
    assert sorted(folder.name.startswith(".") for folder in tmp_path.iterdir()) == [False, False]
    assert not list(tmp_path.glob("*/.lock"))


def test_a_forked_child_leaves_a_recording_alone(tmp_path):
    it = iter(cached(Counting(), tmp_path))
    next(it)
    child = os.fork()
    if not child:
        try:
            it.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert len(list(tmp_path.glob(".part-*/.lock"))) == 1
    assert numbers(it) == list(range(1, 10))
    assert len(list(tmp_path.glob("*/index.json"))) == 1


def without_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")


def test_without_locks_a_folder_is_removed_when_it_is_old(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_stores.fcntl, "flock", without_locks)
    with iter(cached(Counting(), tmp_path)) as it:
        next(it)
        assert numbers(cached(Counting(), tmp_path)) == list(range(10))
        (part,) = tmp_path.glob(".part-*")
        long_ago = time.time() - 8 * 24 * 3600
        for path in (part, *part.iterdir()):
            os.utime(path, (long_ago, long_ago))
        cache_stores.remove_forgotten(tmp_path)
        assert not list(tmp_path.glob(".part-*"))


def test_a_folder_of_another_machine_is_removed_when_it_is_old(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_stores.socket, "gethostname", lambda: "elsewhere")
    recording = cache_stores.UnfinishedFolder(tmp_path, tmp_path / "x")
    monkeypatch.undo()
    os.close(recording._lock)  # as a lock looks that is known on its own machine alone
    cache_stores.remove_forgotten(tmp_path)
    assert recording.path.exists()
    for path in (recording.path, *recording.path.iterdir()):
        os.utime(path, (0, 0))
    cache_stores.remove_forgotten(tmp_path)
    assert not recording.path.exists()


def test_an_iterator_that_is_closed_leaves_nothing(tmp_path):
    with iter(cached(Counting(), tmp_path)) as it:
        next(it)
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


VERSION_1 = {"version": 1, "chunks": [[10, 1]], "start": {}, "end": {}}


def damage_chunk(path: pathlib.Path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("chunk-000000.pickle", damage_chunk),
        ("chunk-000000.pickle", lambda path: path.write_bytes(path.read_bytes()[:-5])),
        ("chunk-000000.pickle", os.remove),
        ("index.json", lambda path: path.write_text("{")),
        ("index.json", lambda path: checked_files.write_json(path, {"version": 99})),
        ("index.json", lambda path: path.write_text(json.dumps(VERSION_1))),
    ],
)
def test_a_damaged_cache_is_named_and_filled_again(tmp_path, name, damage):
    function = Counting()
    ds = cached(function, tmp_path)
    list(ds)
    (kept,) = tmp_path.iterdir()
    damage(kept / name)
    with pytest.warns(UserWarning, match=f"{name} (is|cannot)"):
        assert numbers(ds) == list(range(10))
    assert function.calls == 20
    assert numbers(ds) == list(range(10)) and function.calls == 20  # kept again


@pytest.mark.parametrize("taken", [0, 3, 7])
def test_a_cache_that_is_damaged_further_on_is_left_at_the_same_element(tmp_path, monkeypatch, taken):
    monkeypatch.setattr(cache_stores, "CHUNK_ELEMENTS", 2)
    function = Counting()
    ds = cached(function, tmp_path)
    whole = run(iter(ds))
    (kept,) = tmp_path.iterdir()
    damage_chunk(kept / "chunk-000003.pickle")
    with pytest.warns(UserWarning, match=r"chunk-000003\.pickle is damaged"):
        found = run(restored(ds, plain(whole.states[taken])))
    assert same(found.elements, whole.elements[taken:]) and found.states == whole.states[taken:]


def test_a_full_disk_costs_the_cache_and_no_element(tmp_path):
    program = textwrap.dedent(
        """
        import resource, sys, warnings
        import numpy as np
        import bushel

        warnings.simplefilter("always")
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        ds = bushel.MapDataset.range(3).to_iter_dataset().map(lambda x: np.full(200_000, x)).cache(sys.argv[1])
        for _ in range(2):
            assert [int(element[0]) for element in ds] == [0, 1, 2]
        """
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("This pass is not cached") == 2
    assert "chunk-000000.pickle could not be written (File too large)" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_pickled_is_told(tmp_path):
    ds = MapDataset.range(2).to_iter_dataset().map(lambda x: lambda: x)
    with pytest.raises(Exception, match="pickle") as caught:
        list(ds.cache(tmp_path))
    assert "keeps what can be pickled" in caught.value.__notes__[0]
    assert [function() for function in ds.cache()] == [0, 1]


def test_a_state_past_the_end_is_refused():
    ds = cached(Counting())
    list(ds)
    it = iter(ds)
    with pytest.raises(bushel.StateMismatch, match="after element 11 of a stream that has 10"):
        it.set_state({"parent": {"next_index": 10}, "position": 11, "cache_filled": False}, check=False)
    assert numbers(it) == list(range(10))


def test_a_state_with_a_wrong_position_fills_no_cache():
    ds = cached(Counting())
    it = iter(ds)
    it.set_state({"parent": {"next_index": 5}, "position": 0, "cache_filled": False}, check=False)
    assert numbers(it) == [5, 6, 7, 8, 9]
    assert numbers(ds) == list(range(10))


def test_a_cache_is_filled_anew_when_data_that_a_function_reads_have_changed(tmp_path):
    table = dict.fromkeys(range(1000), 0)  # so large that an identity takes samples of it

    def values():
        return list(MapDataset.range(10).to_iter_dataset().map(lambda x: table[x]).cache(tmp_path))

    def columns():
        return np.asarray(MapDataset.range(10).column(lambda x: table[x], cache_dir=tmp_path)).tolist()

    assert values() == columns() == [0] * 10
    table[5] = 1
    assert values() == columns() == [0] * 5 + [1] + [0] * 4


# ---------------------------------------------------------------------------------------------------------------------
# How often the function before a cache runs


class Calls:
    """Counts the calls for each element."""

    def __init__(self):
        self.of: collections.Counter[int] = collections.Counter()

    def __call__(self, x):
        self.of[x] += 1
        return {"x": np.full(3, 2 * x)}

    def check_once(self, count=None):
        assert set(self.of.values()) <= {1}, dict(self.of)
        assert count is None or len(self.of) == count


AFTER_A_CACHE = {
    "repeat": lambda ds: ds.repeat(3),
    "nested repeats": lambda ds: ds.repeat(2).repeat(2),
    "window_shuffle": lambda ds: bushel.experimental.WindowShuffleIterDataset(ds, window_size=4, seed=1).repeat(2),
    "shuffled windows of epochs": lambda ds: bushel.experimental.WindowShuffleIterDataset(
        ds.repeat(2), window_size=7, seed=1
    ),
    "batch": lambda ds: ds.repeat(2).batch(4),
    "filter": lambda ds: ds.filter(lambda e: e["x"][0] % 4 == 0).repeat(3),
    "limit": lambda ds: ds.repeat(3).limit(22),
    "cache": lambda ds: ds.repeat(2).cache().repeat(2),
    "map and batch": lambda ds: ds.map(lambda e: e["x"] + 1).batch(3).repeat(2),
}


@pytest.mark.parametrize("after", AFTER_A_CACHE)
def test_the_function_before_a_cache_runs_once_for_each_element(folder, after):
    function = Calls()
    ds = AFTER_A_CACHE[after](cached(function, folder, 20))
    first = list(ds)
    function.check_once(20)
    assert same(list(ds), first)
    function.check_once(20)
    assert same(first, list(AFTER_A_CACHE[after](MapDataset.range(20).to_iter_dataset().map(Calls()))))


@settings(deadline=None, max_examples=80)
@given(
    after=st.sampled_from(sorted(AFTER_A_CACHE)),
    moves=st.lists(st.tuples(st.integers(0, 32), st.integers(0, 32)), max_size=6),
    chunk=st.sampled_from([1, 3, 4096]),
    in_files=st.booleans(),
)
def test_elements_are_computed_once_also_if_an_iterator_goes_back_and_forth(
    after, moves, chunk, in_files, tmp_path_factory
):
    function = Calls()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_stores, "CHUNK_ELEMENTS", chunk)
        folder = tmp_path_factory.mktemp("cache") if in_files else None
        ds = AFTER_A_CACHE[after](cached(function, folder, 8))
        whole = list(AFTER_A_CACHE[after](cached(Calls(), None, 8)))
        with iter(ds) as it:
            states = [it.get_state()]
            for back, taken in moves:
                place = back % len(states)  # a position that this iterator was at before
                it.set_state(json.loads(json.dumps(states[place])))
                for number in range(place, min(place + taken, len(whole))):
                    assert same(next(it), whole[number])
                    if number + 1 == len(states):
                        states.append(it.get_state())
            function.check_once()
            it.set_state(states[0])
            assert same(list(it), whole)
        function.check_once(8)
        # Any state of one iterator goes on in another one, which finds the cache full.
        with iter(ds) as other:
            other.set_state(json.loads(json.dumps(states[-1])))
            assert same(list(other), whole[len(states) - 1 :])
        function.check_once(8)


def test_of_two_iterators_side_by_side_each_reads_the_stream_at_most_once(folder):
    function = Calls()
    ds = cached(function, folder, 20).repeat(5)
    a, b = iter(ds), iter(ds)
    found = [(next(a), next(b)) for _ in range(100)]
    assert numbers(one for one, _ in found) == numbers(other for _, other in found) == [*range(20)] * 5
    assert max(function.of.values()) == 2
    a.close()
    b.close()


def test_a_second_iterator_uses_the_cache_as_soon_as_its_pass_begins_again(folder):
    function = Calls()
    ds = cached(function, folder, 20).repeat(2)
    slow, quick = iter(ds), iter(ds)
    assert numbers(next(slow) for _ in range(5)) == [*range(5)]
    assert numbers(quick) == [*range(20)] * 2
    assert sum(function.of.values()) == 25
    start = iter(ds).get_state()
    slow.set_state(start)
    assert numbers(slow) == [*range(20)] * 2
    assert sum(function.of.values()) == 25
    slow.close()


def test_elements_are_computed_once_in_workers(tmp_path):
    log = tmp_path / "calls"

    def note(x):
        with open(log, "a") as file:
            file.write(f"{x}\n")
        return x

    ds = MapDataset.range(20).map(note).to_iter_dataset().cache().repeat(3)
    ds = ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))
    with iter(ds) as it:
        assert [int(element) for element in it] == [*range(20)] * 3
    assert sorted(map(int, log.read_text().split())) == [*range(20)]


def test_what_an_iterator_has_recorded_is_its_own(folder):
    ds = cached(Calls(), folder, 6)
    with iter(ds) as it:
        state = it.get_state()
        for _ in range(3):
            it.set_state(state)
            for number in range(4):
                element = next(it)
                assert element["x"].tolist() == [2 * number] * 3
                element["x"][:] = -1
        it.set_state(state)
        assert numbers(it) == [*range(6)]
    assert numbers(ds) == [*range(6)]


def test_a_recording_that_cannot_be_read_back_costs_the_cache_and_no_element(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_stores, "CHUNK_ELEMENTS", 2)
    ds = cached(Calls(), tmp_path, 10)
    with iter(ds) as it:
        start = it.get_state()
        assert numbers(next(it) for _ in range(7)) == [*range(7)]
        (part,) = tmp_path.iterdir()
        damage_chunk(part / "chunk-000001.pickle")
        it.set_state(start)
        with pytest.warns(UserWarning, match=r"This pass is not cached: .*chunk-000001\.pickle is damaged"):
            assert numbers(it) == [*range(10)]
    assert numbers(ds) == [*range(10)]


@pytest.mark.parametrize("bad", [[0], [3, 4], [9], [0, 5, 8, 9]])
def test_skipped_elements_count_the_same_where_a_recording_is_read_back(folder, bad):
    ds = MapDataset.range(10).to_iter_dataset().map(FailsAt(*bad)).cache(folder).with_options(on_error="skip")
    without = MapDataset.range(10).to_iter_dataset().map(FailsAt(*bad)).with_options(on_error="skip")
    with iter(without) as plain_it:
        expected = [(element, plain_it.skipped) for element in plain_it] + [plain_it.skipped]
    with iter(ds) as it:
        start = it.get_state()
        for taken in (2, 5, 1, 4, 20):
            it.set_state(start)
            found = [(element, it.skipped) for element, _ in zip(it, range(taken), strict=False)]
            assert found == expected[: len(found)] if taken < 20 else [*found, it.skipped] == expected
