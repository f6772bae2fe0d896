"""Transforms: what they make of records and of batches, keys that belong to a record, and wrong arguments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bushel.jit import (
    ArraySource,
    BatchTransform,
    ColorJitterTransform,
    CutMixTransform,
    CutoutTransform,
    DataLoader,
    FlattenImageTransform,
    FlattenTransform,
    MapTransform,
    MixupTransform,
    NormalizeImageTransform,
    RandomCropTransform,
    RandomFlipTransform,
    RandomMapTransform,
    RenameTransform,
    TimeSeriesBatchTransform,
)
from bushel.jit.cereal import DevicePutTransform
from bushel.testing import same

COUNT = 12
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, 6, 8, 3), np.uint8)
DATA = {"image": IMAGES, "label": np.arange(COUNT, dtype=np.int32)}


def batches(*stages, seed=0, steps=3, size=5, data=DATA, remainder="pad"):
    """Batches and masks of a loader; a stage given as None is the batch."""
    placed = [BatchTransform(size, remainder=remainder) if stage is None else stage for stage in stages]
    loader = DataLoader([ArraySource(data, "sequential"), *placed])
    return [jax.tree.map(np.asarray, pair) for pair in loader.iterate(loader.init_state(seed), steps=steps)]


def by_label(out):
    """What each record has become, over all batches."""
    return {
        int(label): image
        for batch, mask in out
        for label, image, real in zip(batch["label"], batch["image"], mask, strict=True)
        if real
    }


def test_a_map_sees_records_before_a_batch_and_batches_behind_it():
    shapes = []

    def look(value, mask):
        shapes.append((value["image"].shape, mask.shape))
        return value

    batches(MapTransform(look), None, MapTransform(look), steps=1)
    assert set(shapes) == {((6, 8, 3), ()), ((5, 6, 8, 3), (5,))}


def test_a_map_may_change_structure_and_dtype():
    (batch, _), *_ = batches(MapTransform(lambda value, mask: value["label"] / 2), None, steps=1)
    assert batch.dtype == np.float32 and batch.shape == (5,)


@pytest.mark.parametrize("place", [pytest.param("before", marks=pytest.mark.slow), "behind"])
def test_a_random_change_belongs_to_the_record_and_the_epoch(place):
    def stages():
        noise = RandomMapTransform(lambda each, key: {**each, "image": jax.random.normal(key)})
        return [noise, None] if place == "before" else [None, noise]

    first = by_label(batches(*stages()))
    assert len(set(map(float, first.values()))) == COUNT
    assert same(by_label(batches(*stages(), size=4)), first)  # whatever the batch
    second_epoch = by_label(batches(*stages(), steps=6)[3:])
    assert all(first[label] != second_epoch[label] for label in first)
    assert all(first[label] != other for label, other in by_label(batches(*stages(), seed=1)).items())


def test_two_random_stages_have_keys_of_their_own():
    def noise(name):
        return RandomMapTransform(lambda each, key: {**each, name: jax.random.normal(key)})

    (batch, _), *_ = batches(noise("a"), noise("b"), None, noise("c"), steps=1)
    assert len({*batch["a"].tolist(), *batch["b"].tolist(), *batch["c"].tolist()}) == 15


def test_padding_is_zero_and_masked_whatever_came_before():
    noise = RandomMapTransform(lambda each, key: {**each, "image": each["image"] + jnp.uint8(1)})
    *_, (batch, mask) = batches(noise, None)
    assert mask.tolist() == [True, True, False, False, False]
    assert not batch["image"][2:].any() and not batch["label"][2:].any()


@pytest.mark.parametrize("place", [pytest.param("before", marks=pytest.mark.slow), "behind"])
def test_flips_are_mirror_images_or_not(place):
    stages = [RandomFlipTransform(), None] if place == "before" else [None, RandomFlipTransform()]
    flipped = [(out == IMAGES[label]).all() for label, out in by_label(batches(*stages)).items()]
    assert 0 < sum(flipped) < COUNT
    for label, out in by_label(batches(*stages)).items():
        assert (out == IMAGES[label]).all() or (out == IMAGES[label][:, ::-1]).all()
    for label, out in by_label(batches(None, RandomFlipTransform(probability=1.0))).items():
        assert (out == IMAGES[label][:, ::-1]).all()


@pytest.mark.parametrize("mode", ["constant", pytest.param("reflect", marks=pytest.mark.slow)])
def test_crops_are_cut_out_of_the_padded_image(mode):
    seen = set()
    for label, out in by_label(batches(None, RandomCropTransform(2, mode=mode))).items():
        wide = np.pad(IMAGES[label], [(2, 2), (2, 2), (0, 0)], mode=mode)
        places = [(r, c) for r in range(5) for c in range(5) if (wide[r : r + 6, c : c + 8] == out).all()]
        assert places
        seen.add(places[0])
    assert len(seen) > 3


def test_cutout_blanks_a_square():
    bright = {"image": np.full_like(IMAGES, 200), "label": DATA["label"]}
    sizes = set()
    for out in by_label(batches(None, CutoutTransform(3), data=bright)).values():
        blank = (out == 0).all(axis=-1)
        rows, columns = np.flatnonzero(blank.any(axis=1)), np.flatnonzero(blank.any(axis=0))
        assert blank.sum() == len(rows) * len(columns) and max(len(rows), len(columns)) <= 3
        assert ((out == 200).all(axis=-1) | blank).all()
        sizes.add(int(blank.sum()))
    assert 9 in sizes


def test_colours_change_within_their_range():
    for label, out in by_label(batches(None, ColorJitterTransform(0.0, 0.0, 0.0))).items():
        assert (out == IMAGES[label]).all()
    for label, out in by_label(batches(None, ColorJitterTransform(brightness=0.5))).items():
        assert out.dtype == np.uint8 and (out != IMAGES[label]).any()
        unclipped = (IMAGES[label] > 20) & (out < 255)
        ratio = out[unclipped] / IMAGES[label][unclipped]
        assert ratio.min() > 0.45 and ratio.max() < 1.55 and np.ptp(ratio) < 0.06
    (batch, _), *_ = batches(None, NormalizeImageTransform(), ColorJitterTransform(0.1, 0.2, 0.3), steps=1)
    assert batch["image"].dtype == np.float32


@pytest.mark.parametrize("kind", [pytest.param(MixupTransform, marks=pytest.mark.slow), CutMixTransform])
def test_mixtures_share_labels_as_they_share_images(kind):
    flat = {"image": np.full((COUNT, 6, 8, 3), 1.0, np.float32) * np.arange(COUNT).reshape(-1, 1, 1, 1)}
    out = batches(None, kind(COUNT, alpha=1.0), data={**flat, "label": DATA["label"]})
    shares = []
    for batch, mask in out:
        np.testing.assert_allclose(batch["label"][mask].sum(axis=1), 1, rtol=1e-5)
        # An image is its own label everywhere, so the mean of a mixture is the mean of its labels.
        means = batch["image"].mean(axis=(1, 2, 3))[mask]
        np.testing.assert_allclose(means, (batch["label"] @ np.arange(COUNT))[mask], rtol=1e-4, atol=1e-4)
        shares.extend(batch["label"][mask].max(axis=1).tolist())
        assert not batch["label"][mask][:, []].any() and (batch["label"][mask] > 1e-6).sum(axis=1).max() <= 2
    assert min(shares) < 0.9


def test_images_are_normalised_and_made_flat():
    (batch, _), *_ = batches(None, NormalizeImageTransform(scale=2.0, offset=1.0), FlattenImageTransform(), steps=1)
    assert batch["image"].shape == (5, 6 * 8 * 3)
    (batch, _), *_ = batches(FlattenImageTransform(), None, steps=1)
    assert batch["image"].shape == (5, 6 * 8 * 3)
    (batch, _), *_ = batches(None, FlattenTransform("image", start_index=2), steps=1)
    assert batch["image"].shape == (5, 6, 24)


def test_batches_go_to_a_device():
    for device in (None, "cpu:0", jax.devices()[0]):
        (batch, _), *_ = batches(None, DevicePutTransform(device), steps=1)
        assert batch["label"].shape == (5,)


def test_random_stages_run_behind_sources_that_can_only_go_on():
    class Zeros:
        steps_per_epoch = 4

        def init_state(self, key=None):
            return ()

        def next(self, state):
            return jnp.float32(0), jnp.bool_(True), state

        def element_spec(self):
            return jax.ShapeDtypeStruct((), jnp.float32)

    noise = RandomMapTransform(lambda each, key: each + jax.random.normal(key))
    for stages in ([noise, BatchTransform(4)], [BatchTransform(4), noise]):
        loader = DataLoader([Zeros(), *stages])
        (batch, _), (other, _) = loader.iterate(loader.init_state(0), steps=2)
        assert len({*batch.tolist(), *other.tolist()}) == 8


SPEC = jax.ShapeDtypeStruct((), jnp.float32)


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        (
            [BatchTransform(13, remainder="drop")],
            'remainder="drop" with batch_size=13 leaves no batch: an epoch has 12 elements.',
        ),
        ([MapTransform(3)], "MapTransform takes a function, got 3."),
        ([RandomMapTransform("x")], "RandomMapTransform takes a function, got 'x'."),
        ([MapTransform(lambda v, m: v, SPEC)], "but element_spec_override says float32[]"),
        ([NormalizeImageTransform("picture")], "elements have no entry 'picture', only ['image', 'label']."),
        ([MapTransform(lambda v, m: v["label"]), FlattenImageTransform()], "elements with named entries, got int32[]"),
        (
            [FlattenTransform("image", start_index=3)],
            "start_index must be an axis of 'image', which is uint8[6, 8, 3]; got 3.",
        ),
        ([RenameTransform({"x": "y"})], "RenameTransform: elements have no entry 'x', only ['image', 'label']."),
        ([RenameTransform({"image": "label"})], "two entries would have the name 'label'"),
        ([MapTransform(lambda v, m: v["label"]), RenameTransform({})], "elements that are dicts, got int32[]"),
        ([TimeSeriesBatchTransform("label")], "needs axes for batch and time, got int32[]"),
        ([DevicePutTransform("tpu:9")], "There is no device 'tpu:9'. The devices are cpu:0"),
        ([RandomFlipTransform("label")], "takes images (rows, columns) or (rows, columns, colours), got int32[]"),
        ([MixupTransform(10)], "mixes the records of a batch: put it after a BatchTransform."),
        ([MixupTransform(10, alpha=0)], "alpha must be positive, got 0."),
    ],
)
def test_wrong_stages_get_a_sentence_when_the_loader_is_built(stages, sentence):
    with pytest.raises((TypeError, ValueError, KeyError)) as raised:
        DataLoader([ArraySource(DATA), *stages])
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: BatchTransform(0), "batch_size must be positive, but got 0."),
        (lambda: BatchTransform(2.5), "batch_size must be an integer, got 2.5"),
        (lambda: BatchTransform(2, remainder="keep"), "Inside jit all batches have one shape, so a shorter last batch"),
        (
            lambda: BatchTransform(2, remainder="padd"),
            'remainder must be "pad", "drop" or "wrap", got \'padd\'. Did you mean "pad"?',
        ),
        (
            lambda: TimeSeriesBatchTransform("image", mode="flat"),
            'mode must be "batched" or "packed", got \'flat\'.',
        ),
        (
            lambda: BatchTransform(2, drop_last=True),
            'no argument `drop_last`. Write `BatchTransform(4, remainder="drop")`',
        ),
        (lambda: BatchTransform(2, True), "BatchTransform"),
        (lambda: RandomFlipTransform(probability=2), "probability must be from 0 to 1, got 2."),
        (lambda: RandomCropTransform(0), "padding must be positive, but got 0."),
        (lambda: RandomCropTransform(mode="wrap"), 'mode must be "constant" or "reflect", got \'wrap\'.'),
        (lambda: CutoutTransform(-1), "size must be positive, but got -1."),
        (lambda: ColorJitterTransform(brightness=2), "brightness must be from 0 to 1, got 2."),
    ],
)
def test_wrong_arguments_get_a_sentence(make, sentence):
    with pytest.raises((TypeError, ValueError)) as raised:
        make()
    assert sentence in str(raised.value)
