"""Loaders and their counterparts on the host, for the tests of this folder."""

from __future__ import annotations

import jax
import numpy as np

import bushel
from bushel.jit import ArraySource, BatchTransform, DataLoader
from bushel.sources import ArrayDataSource

REMAINDERS = ("pad", "drop", "wrap")


def arrays(length):
    """Records that tell their number, in two dtypes and shapes."""
    return {"x": np.arange(length, dtype=np.int32), "row": np.arange(length * 4, dtype=np.float32).reshape(length, 4)}


def loader_of(length, size, remainder, ordering="shuffle", data=None):
    batch = BatchTransform(size, remainder=remainder)
    return DataLoader([ArraySource(arrays(length) if data is None else data, ordering), batch])


def host_of(length, size, remainder, seed, data=None):
    """The pipeline of the host that a loader promises to equal."""
    records = bushel.MapDataset.source(ArrayDataSource(arrays(length) if data is None else data)).seed(seed).shuffle()
    if remainder == "wrap":
        return records.repeat().batch(size)
    return records.batch(size, drop_remainder=remainder == "drop").repeat()


def collected(carry, batch, mask):
    """A body for scan_epoch that gives everything back."""
    return carry, (batch, mask)


def real(batch, mask):
    """The rows of a batch that are no padding."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[np.asarray(mask)], batch)
