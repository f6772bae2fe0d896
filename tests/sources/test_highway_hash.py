"""HighwayHash of ArrayRecord files: the same in C and in NumPy; checked by default where the package is installed."""

import sys
import types

import numpy as np
import pytest
from formats import written
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bushel.sources import ArrayRecordDataSource, DamagedFile, highway_hash

RECORDS = [bytes([number]) * 400 for number in range(9)]


@pytest.fixture
def installed(monkeypatch):
    """Gives a function that puts a module in the place of the package, or None for no package."""

    def install(hashed):
        module = None if hashed is None else types.SimpleNamespace(highwayhash_64=hashed)
        monkeypatch.setitem(sys.modules, "highwayhash", module)
        monkeypatch.setitem(sys.modules, "highwayhash._highwayhash", None)  # or the real one is found, where it is
        highway_hash.find_c_function.cache_clear()

    yield install
    monkeypatch.undo()
    highway_hash.find_c_function.cache_clear()


def damaged(tmp_path):
    path = written(tmp_path, "array_record plain", RECORDS)
    content = bytearray(path.read_bytes())
    content[content.index(RECORDS[5]) + 7] ^= 1
    path.write_bytes(content)
    return path


@settings(deadline=None)
@given(messages=st.lists(st.one_of(st.binary(max_size=100), st.integers(0, 3000).map(bytes)), max_size=5))
@example(messages=[bytes(range(size)) for size in range(70)])
def test_the_package_and_numpy_give_the_same(messages):
    pytest.importorskip("highwayhash", reason="pip install 'bushel[highway]' needs a C compiler")
    assert highway_hash.find_c_function() is not None
    assert highway_hash.compute_hashes(messages) == highway_hash.hash_with_numpy(messages).tolist()
    views = [memoryview(bytearray(message)) for message in messages]
    assert highway_hash.compute_hashes(views) == highway_hash.hash_with_numpy(messages).tolist()


def test_hashes_are_checked_by_default_with_the_package(tmp_path):
    pytest.importorskip("highwayhash", reason="pip install 'bushel[highway]' needs a C compiler")
    check_default(damaged(tmp_path), noticed=True)


def test_hashes_are_checked_by_default_with_a_function_that_computes_them(installed, tmp_path):
    asked = []

    def hashed(key, message):
        assert key == b"Riegeli/records\n" * 2
        assert type(message) is bytes  # the package takes nothing else
        asked.append(message)
        return highway_hash.hash_with_numpy([message]).tobytes()

    installed(hashed)
    check_default(damaged(tmp_path), noticed=True)
    assert RECORDS[4] in {message[-400:] for message in asked}
    assert highway_hash.compute_hashes([]) == []


def test_hashes_are_not_checked_by_default_without_the_package(installed, tmp_path):
    path = damaged(tmp_path)
    for hashed in (None, lambda key, message: bytes(8)):  # another package of this name is none
        installed(hashed)
        check_default(path, noticed=False)
    with pytest.raises(DamagedFile, match="record 5 is damaged: its content does not match its hash"):
        ArrayRecordDataSource(path, verify=True)[5]


def check_default(path, noticed):
    """Whether a source with default options notices the damage of record 5. Others are read in any case."""
    source, unchecked = ArrayRecordDataSource(path), ArrayRecordDataSource(path, verify=False)
    assert source[4] == RECORDS[4] and source.__getitems__([8, 0]) == [RECORDS[8], RECORDS[0]]
    assert unchecked[5] != RECORDS[5]
    if not noticed:
        assert source.__getitems__([5, 1]) == unchecked.__getitems__([5, 1])
        return
    for read in (
        lambda: source[5],
        lambda: source.__getitems__([5, 1]),
        lambda: source.read_into([5], np.empty((1, 400), np.uint8)),
    ):
        with pytest.raises(DamagedFile, match="record 5 is damaged: its content does not match its hash"):
            read()
