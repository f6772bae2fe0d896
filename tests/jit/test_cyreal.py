"""The real cyreal beside: the same masks, shapes and coverage for the API that both have."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from cyreal.loader import DataLoader as TheirLoader
from cyreal.sources import ArraySource as TheirSource
from cyreal.transforms import BatchTransform as TheirBatch
from cyreal.transforms import BufferTransform as TheirBuffer
from cyreal.transforms import FlattenTransform as TheirFlatten
from cyreal.transforms import NormalizeImageTransform as TheirNormalize
from cyreal.transforms import RenameTransform as TheirRename
from cyreal.transforms import TimeSeriesBatchTransform as TheirSeries

from bushel.jit import (
    ArraySource,
    BatchTransform,
    BufferTransform,
    DataLoader,
    FlattenTransform,
    NormalizeImageTransform,
    RenameTransform,
    TimeSeriesBatchTransform,
)
from bushel.jit.cereal import BatchTransform as CerealBatch
from bushel.testing import same

DATA = {"image": np.arange(11 * 6, dtype=np.uint8).reshape(11, 2, 3), "label": np.arange(11, dtype=np.int32)}


def both(stages, ordering="sequential", data=DATA):
    """A loader of theirs and one of ours; `stages` are pairs of transforms."""
    theirs = TheirLoader([TheirSource(data, ordering), *(pair[0] for pair in stages)])
    ours = DataLoader([ArraySource(data, ordering), *(pair[1] for pair in stages)])
    return theirs, ours


def run(loader, epochs=2):
    step, state, out = jax.jit(loader.next), loader.init_state(jax.random.key(1)), []
    for _ in range(epochs * loader.steps_per_epoch):
        batch, state, mask = step(state)
        out.append((jax.tree.map(np.asarray, batch), np.asarray(mask)))
    return out


REMAINDERS = [{}, {"drop_last": True}, {"pad_last_batch": True}]


def remainder_of(arguments):
    """Our argument for theirs."""
    return "drop" if "drop_last" in arguments else "pad" if "pad_last_batch" in arguments else "wrap"


SLOW = [pytest.param(arguments, marks=pytest.mark.slow) for arguments in REMAINDERS[:2]]


@pytest.mark.parametrize("arguments", REMAINDERS)
@pytest.mark.parametrize("size", [4, pytest.param(13, marks=pytest.mark.slow)])
def test_batches_in_sequence_are_equal(size, arguments):
    if size > 11 and arguments.get("drop_last"):
        with pytest.raises(ValueError):
            both([(TheirBatch(size, **arguments), None)])
        with pytest.raises(
            ValueError, match='remainder="drop" with batch_size=13 leaves no batch: an epoch has 11 elements'
        ):
            BatchTransform(size, remainder="drop")(ArraySource(DATA))
        return
    theirs, ours = both([(TheirBatch(size, **arguments), BatchTransform(size, remainder=remainder_of(arguments)))])
    assert ours.steps_per_epoch == theirs.steps_per_epoch
    assert same(run(ours), run(theirs))


@pytest.mark.parametrize("arguments", [{"pad_last_batch": True}, *SLOW])
def test_shuffled_batches_have_equal_masks_and_shapes_and_cover_the_same(arguments):
    theirs, ours = both([(TheirBatch(4, **arguments), BatchTransform(4, remainder=remainder_of(arguments)))], "shuffle")
    mine, its = run(ours), run(theirs)
    assert [mask.tolist() for _, mask in mine] == [mask.tolist() for _, mask in its]
    assert [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), batch) for batch, _ in mine] == [
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), batch) for batch, _ in its
    ]
    if not arguments.get("drop_last"):

        def covered(out):
            return sorted(np.concatenate([batch["label"][mask] for batch, mask in out])[:11].tolist())

        assert covered(mine) == covered(its) == list(range(11))


def test_transforms_are_equal():
    stages = [
        (TheirBatch(4, pad_last_batch=True), BatchTransform(4)),
        (TheirNormalize("image", offset=-0.5), NormalizeImageTransform("image", offset=-0.5)),
        (TheirFlatten("image"), FlattenTransform("image")),
        (TheirRename({"image": "pixels"}), RenameTransform({"image": "pixels"})),
    ]
    theirs, ours = both(stages)
    mine, its = run(ours), run(theirs)
    assert [sorted(batch) for batch, _ in mine] == [sorted(batch) for batch, _ in its]
    for (a, _), (b, _) in zip(mine, its, strict=True):
        np.testing.assert_allclose(a["pixels"], b["pixels"], rtol=1e-6)
        assert a["pixels"].shape == b["pixels"].shape
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), ours.element_spec()) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), theirs._source.element_spec()
    )


@pytest.mark.parametrize("mode", [pytest.param("batched", marks=pytest.mark.slow), "packed"])
def test_batches_of_sequences_are_equal(mode):
    data = {"context": np.arange(7 * 5, dtype=np.float32).reshape(7, 5), "target": np.arange(7)}
    stages = [
        (TheirBatch(3, pad_last_batch=True), BatchTransform(3)),
        (TheirSeries(mode=mode), TimeSeriesBatchTransform(mode=mode)),
    ]
    theirs, ours = both(stages, data=data)
    assert same(run(ours), run(theirs))


def test_cereals_class_has_their_arguments_and_wraps_as_they_do_where_they_pad_nothing():
    theirs, ours = both([(TheirBatch(4), CerealBatch(4, pad_last_batch=False))])
    assert same(run(ours), run(theirs))


def test_by_default_each_record_counts_once():
    loader = DataLoader([ArraySource(np.arange(10), "sequential"), BatchTransform(4)])
    _, right, masks = loader.scan_epoch(
        loader.init_state(0), 0, lambda count, batch, mask: (count + ((batch < 2) & mask).sum(), mask)
    )
    assert masks.sum() == 10 and right / masks.sum() == pytest.approx(0.2)


def test_scan_epoch_returns_the_same():
    theirs, ours = both([(TheirBatch(4, pad_last_batch=True), BatchTransform(4))])

    def body(total, batch, mask):
        return total + (batch["label"] * mask).sum(), mask.sum()

    results = []
    for loader in (theirs, ours):
        _, total, counts = loader.scan_epoch(loader.init_state(jax.random.key(0)), 0, body)
        results.append((int(total), counts.tolist()))
    assert results[0] == results[1] == (55, [4, 4, 3])


@pytest.mark.parametrize("sample_size", [3])
def test_buffers_in_sequence_are_equal(sample_size):
    arguments = {"capacity": 5, "prefill": 4, "sample_size": sample_size}
    theirs, ours = both([(TheirBuffer(**arguments), BufferTransform(**arguments))])
    assert same(run(ours), run(theirs))


@pytest.mark.parametrize("size", [2, 6])
@pytest.mark.parametrize("arguments", REMAINDERS)
def test_batches_of_buffers_are_equal(size, arguments):
    buffer = {"capacity": 8, "prefill": 6, "sample_size": size}
    stages = [
        (TheirBuffer(**buffer), BufferTransform(**buffer)),
        (TheirBatch(3, **arguments), BatchTransform(3, remainder=remainder_of(arguments))),
    ]
    theirs, ours = both(stages)
    assert same(run(ours), run(theirs)) and run(ours)[0][1].shape == (3,)
