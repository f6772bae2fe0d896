"""Sources that use one buffer for all their records: each read overwrites the record before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bushel

MASK = np.ones(3, bool)


class OneBuffer:
    """Counts its reads. Records are a view of the buffer, or the buffer itself, with a constant beside it."""

    def __init__(self, *, views: bool = False):
        self.buffer, self.views, self.reads = np.zeros(4, np.int32), views, 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads += 1
        self.buffer[:] = index
        return {"mask": MASK, "tokens": self.buffer[:] if self.views else self.buffer}


class OneDict:
    """Returns the same dict for all records, with other entries."""

    def __init__(self) -> None:
        self.record: dict[str, int] = {}

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, int]:
        self.record.update({"index": index, f"entry {index}": index})
        return self.record


class OneBlock(OneBuffer):
    """Reads many records at once, always into the same buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.block = np.zeros((8, 4), np.int32)

    def __getitems__(self, indices: Any) -> list[dict[str, Any]]:
        block = self.block[: len(indices)]
        block[:] = np.asarray(indices)[:, None]
        return [{"mask": MASK, "tokens": row} for row in block]


class Constant(OneBuffer):
    """Each record has an array of its own, and one that all records share."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads += 1
        return {"mask": MASK, "tokens": np.full(4, index, np.int32)}


EXPECTED = np.repeat(np.arange(8, dtype=np.int32)[:, None], 4, axis=1)


@pytest.mark.parametrize("views", [False, True])
def test_no_record_is_lost(views):
    ds = bushel.MapDataset.source(OneBuffer(views=views))
    assert np.array_equal(ds.batch(8)[0]["tokens"], EXPECTED)
    mapped = ds.map(lambda x: {"tokens": x["tokens"].astype(np.int64)}).batch(8)
    assert np.array_equal(mapped[0]["tokens"], EXPECTED)
    packed = ds.map(lambda x: {"tokens": x["tokens"]}).pack(np.full(8, 4), {"tokens": 32}, window=1)
    assert np.array_equal(packed[0]["tokens"], EXPECTED.ravel())
    batches = [batch["tokens"] for batch in ds.to_iter_dataset(bushel.ReadOptions(0, 0)).batch(4)]
    assert np.array_equal(np.concatenate(batches), EXPECTED)


def test_no_record_is_lost_in_a_mixture_of_many_sources():
    ds = bushel.MapDataset.mix([bushel.MapDataset.source(OneBuffer()) for _ in range(20)])
    assert ds.batch(160)[0]["tokens"][:, 0].tolist() == [index for index in range(8) for _ in range(20)]


def test_no_record_is_lost_where_one_source_is_read_by_several_plans():
    ds = bushel.MapDataset.source(OneBuffer())
    mixed = bushel.MapDataset.mix([ds[:4], ds[4:]]).batch(2)
    assert [batch["tokens"][:, 0].tolist() for batch in mixed] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    ds = bushel.MapDataset.source(OneBuffer())
    one, other = ds[:7].zip(ds[1:]).batch(1)[0]
    assert (one["tokens"][0, 0], other["tokens"][0, 0]) == (0, 1)


def test_no_record_is_lost_where_all_are_one_dict():
    ds = bushel.MapDataset.source(OneDict())
    assert [len(row) for row in ds.batch(8, batch_fn=list)[0]] == list(range(2, 10))
    batch = bushel.MapDataset.source(OneDict()).map(lambda x: {"index": x["index"]}).batch(8)[0]
    assert batch["index"].tolist() == list(range(8))


def test_no_record_is_lost_where_a_source_reads_every_block_into_one_buffer():
    ds = bushel.MapDataset.source(OneBlock())
    mixed = bushel.MapDataset.mix([ds[:4], ds[4:]]).batch(4)
    assert [batch["tokens"][:, 0].tolist() for batch in mixed] == [[0, 4, 1, 5], [2, 6, 3, 7]]
    stream = bushel.MapDataset.source(OneBlock()).map(lambda x: {"tokens": x["tokens"]}).to_iter_dataset()
    packed = bushel.experimental.FirstFitPackIterDataset(
        stream, length_struct={"tokens": 8}, num_packing_bins=2, shuffle_bins=False
    )
    assert np.array_equal(np.concatenate([row["tokens"] for row in packed]), EXPECTED.ravel())


def test_no_record_is_lost_after_one_that_is_read_twice():
    ds = bushel.MapDataset.source(OneBuffer()).slice([5, 5, 6])
    assert ds.batch(3)[0]["tokens"][:, 0].tolist() == [5, 5, 6]


def test_records_that_share_a_constant_are_not_read_again():
    source = Constant()
    ds = bushel.MapDataset.source(source).batch(4)
    ds[0]
    source.reads = 0
    assert np.array_equal(ds[1]["tokens"], EXPECTED[4:])
    assert source.reads == 4


class Kept:
    """Returns its own arrays."""

    def __init__(self) -> None:
        self.arrays = [np.full(4, index) for index in range(8)]

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> np.ndarray:
        return self.arrays[index]


def test_records_that_a_source_keeps_are_copied_for_a_batch_but_not_those_of_a_list():
    source = Kept()
    rows = bushel.MapDataset.source(source)._node.plan(np.arange(8)).look(0, 8)
    assert not any(row is array for row, array in zip(rows, source.arrays, strict=True))
    assert np.array_equal(rows, source.arrays)
    rows = bushel.MapDataset.source(source.arrays)._node.plan(np.arange(8)).look(0, 8)
    assert all(row is array for row, array in zip(rows, source.arrays, strict=True))


def test_no_record_is_lost_if_the_first_two_are_equal():
    frames = [0, 0, 1, 2, 3]

    class Video(OneBuffer):
        def __len__(self) -> int:
            return len(frames)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return super().__getitem__(frames[index])

    assert bushel.MapDataset.source(Video()).batch(5)[0]["tokens"][:, 0].tolist() == frames
