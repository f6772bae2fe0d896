"""Element types through a pipeline, for pyright: `tests/test_types.py` runs it. Each line states what is inferred."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np

import bushel
from bushel import DatasetIterator, Explanation, IterDataset, MapDataset, Report


class Images:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"image": np.zeros(3)}


def length(word: str) -> int:
    return len(word)


assert_type(MapDataset.range(3), MapDataset[int])
assert_type(MapDataset.source(["a", "b"]), MapDataset[str])
assert_type(MapDataset.source(["a", "b"]).seed(1).shuffle()[1:], MapDataset[str])
assert_type(MapDataset.source(["a"]).map(length), MapDataset[int])
assert_type(MapDataset.source(["a"]).map(length).batch(2), MapDataset[np.ndarray])
assert_type(MapDataset.source(Images()), MapDataset[dict[str, np.ndarray]])
assert_type(MapDataset.source(Images()).batch(2), MapDataset[dict[str, np.ndarray]])
assert_type(MapDataset.source(Images()).to_iter_dataset().batch(2), IterDataset[dict[str, np.ndarray]])
assert_type(MapDataset.source(["a"]).batch(2, batch_fn=list), MapDataset[list[str]])
assert_type(MapDataset.source(["a"]).batch(2), MapDataset[Any])

iterator = iter(MapDataset.source(Images()))
assert_type(iterator, DatasetIterator[dict[str, np.ndarray]])
assert_type(next(iterator), dict[str, np.ndarray])
assert_type(iterator.report(), Report)
assert_type(iterator.skipped, int)
assert_type(iterator.explain(), list[Explanation])
assert_type(len(MapDataset.range(3).to_iter_dataset()), int)
bushel.MapDataset.range(3).mp_prefetch()  # pyright: ignore[reportAttributeAccessIssue]
