"""Every snippet of cereal's first README, with the one changed word and the small fixes that docs/jit.md lists.

What stands above or below a snippet is only what it takes for granted: data, a model, an optimiser.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.image_files import write_mnist

from bushel.jit import cereal, masked_mean


class TrainState(NamedTuple):
    """As much of a train state as the snippets use."""

    params: Any

    @staticmethod
    def apply_fn(params, images):
        return images.reshape(len(images), -1).astype(jnp.float32) / 255 @ params

    def apply_gradients(self, *, grads):
        return TrainState(jax.tree.map(lambda p, g: p - 0.1 * g, self.params, grads))


def cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return write_mnist(tmp_path / "bushel" / "mnist", train=300, test=40)


@pytest.fixture
def data(mnist):
    return cereal.MNISTDataset(split="train").as_array_dict()


def test_the_quick_start_of_cereals_readme_runs(mnist):
    from bushel.jit.cereal import (
        ArraySampleSource,
        BatchTransform,
        DataLoader,
        DevicePutTransform,
        MNISTDataset,
        dataset_to_jax,
    )

    train_state = TrainState(jnp.zeros((784, 10)))

    dataset = MNISTDataset(split="train")
    train_arrays = dataset_to_jax(dataset, storage_device="cpu")

    pipeline = [
        ArraySampleSource(train_arrays, ordering="shuffle"),
        BatchTransform(batch_size=128, pad_last_batch=True),
        DevicePutTransform(),
    ]
    loader = DataLoader(pipeline=pipeline)
    loader_state = loader.init_state(jax.random.PRNGKey(0))

    def step(train_state, loader_state):
        batch, loader_state, mask = loader.next_batch(loader_state)
        images, labels = batch

        def loss(params):  # was computed outside, where it has no gradient
            logits = train_state.apply_fn(params, images)
            return jnp.mean(cross_entropy(logits, labels) * mask[:, None])

        grads = jax.grad(loss)(train_state.params)
        new_state = train_state.apply_gradients(grads=grads)
        return new_state, loader_state

    before = train_state
    step = jax.jit(step)
    for _ in range(3):
        train_state, loader_state = step(train_state, loader_state)
    assert loader.steps_per_epoch == 3
    assert float(jnp.abs(train_state.params - before.params).max()) > 0
    images, labels = mnist["train"]
    accuracy = (np.asarray(train_state.apply_fn(train_state.params, images)).argmax(1) == labels).mean()
    assert accuracy > 0.5  # a bright row tells the digit


def test_the_example_of_cereals_readme_with_a_custom_pipeline_runs(data):
    from bushel.jit.cereal import ArraySampleSource, BatchTransform, DataLoader, DevicePutTransform

    source = ArraySampleSource(data, ordering="sequential")
    pipeline = BatchTransform(batch_size=128)(source)
    pipeline = DevicePutTransform()(pipeline)

    state = pipeline.init_state(jax.random.PRNGKey(0))
    batch, mask, state = pipeline.next(state)
    assert batch["label"].tolist() == data["label"][:128].tolist() and mask.all()

    loader = DataLoader(
        pipeline=[
            ArraySampleSource(data, ordering="sequential"),
            BatchTransform(batch_size=128),
            DevicePutTransform(),
        ]
    )
    loader_state = loader.init_state(jax.random.PRNGKey(0))
    batch, loader_state, mask = loader.next_batch(loader_state)
    assert batch["label"].tolist() == data["label"][:128].tolist() and mask.all()
    for _ in range(2):
        batch, loader_state, mask = loader.next_batch(loader_state)
    assert mask.sum() == 300 - 2 * 128  # cereal pads by default


def test_the_example_of_cereals_readme_with_jit_runs(data):
    loader = cereal.DataLoader([cereal.ArraySampleSource(data), cereal.BatchTransform(64)])
    loader_state, train_state = loader.init_state(0), TrainState(jnp.zeros((784, 10)))

    def model_apply(params, batch, rng):
        return TrainState.apply_fn(params, batch["image"])

    def train_step(train_state, loader_state, rng):
        batch, loader_state, mask = loader.next_batch(loader_state)

        def loss(params):
            logits = model_apply(params, batch, rng)
            return jnp.mean(cross_entropy(logits, batch["label"]) * mask[:, None])

        grads = jax.grad(loss)(train_state.params)
        train_state = train_state.apply_gradients(grads=grads)
        return train_state, loader_state

    compiled_step = jax.jit(train_step)
    train_state, loader_state = compiled_step(train_state, loader_state, jax.random.PRNGKey(0))
    assert float(jnp.abs(train_state.params).max()) > 0


def test_scan_epoch_example(data):
    loader = cereal.DataLoader([cereal.ArraySampleSource(data), cereal.BatchTransform(64)])
    loader_state, opt_state = loader.init_state(0), jnp.int32(0)

    def optimizer_update(opt_state, batch, mask):
        return opt_state + (batch["label"] * mask).sum()

    def body_fn(carry, _):
        opt_state, loader_state = carry
        batch, loader_state, mask = loader.next_batch(loader_state)
        opt_state = optimizer_update(opt_state, batch, mask)
        return (opt_state, loader_state), None

    (opt_state, loader_state), _ = loader.scan_epoch((opt_state, loader_state), None, body_fn)
    assert int(opt_state) == data["label"].sum()
    assert loader.save(loader_state) == {"seed": 0, "epoch": 1, "position": 0}


def test_the_example_of_cereals_readme_with_host_callbacks_runs(data, capsys):
    from bushel.jit.cereal import ArraySampleSource, BatchTransform, DataLoader, HostCallbackTransform, MapTransform

    train_data, model = data, lambda images: TrainState.apply_fn(jnp.zeros((784, 10)), images)

    def attach_loss(batch, mask):
        logits = model(batch["image"])
        loss = jnp.mean(cross_entropy(logits, batch["label"]) * mask[:, None])
        return {**batch, "loss": loss}

    def log_loss(batch, mask):
        del mask
        print("loss:", float(np.asarray(batch["loss"])))

    loader = DataLoader(
        pipeline=[
            ArraySampleSource(train_data, ordering="shuffle"),
            BatchTransform(batch_size=128),
            MapTransform(fn=attach_loss),
            HostCallbackTransform(fn=log_loss),
        ],
    )
    batch, _, _ = loader.next_batch(loader.init_state(0))
    assert float(batch["loss"]) == pytest.approx(np.log(10), rel=1e-5)
    jax.effects_barrier()
    assert capsys.readouterr().out.startswith("loss: 2.302")


def test_transforms_with_the_source_first(data):
    source = cereal.ArraySampleSource(data, ordering="sequential")
    batches = cereal.BatchTransform(source, batch_size=4)
    images = cereal.NormalizeImageTransform(batches, image_key="image", dtype=jnp.float32)
    vectors = cereal.FlattenImageTransform(images, image_key="image")
    logged = cereal.HostCallbackTransform(vectors, lambda batch, mask: {**batch, "label": batch["label"] + 1})
    batch, _, _ = logged.next(logged.init_state(jax.random.PRNGKey(0)))
    assert batch["image"].shape == (4, 784) and batch["image"].dtype == jnp.float32
    assert batch["label"].tolist() == (data["label"][:4] + 1).tolist()
    np.testing.assert_allclose(batch["image"], data["image"][:4].reshape(4, -1) / 255, rtol=1e-6)


def test_batch_transform_argument(data):
    loader = cereal.DataLoader(
        [cereal.ArraySampleSource(data), cereal.BatchTransform(8)],
        batch_transform=lambda batch: {**batch, "image": 255 - batch["image"]},
    )
    plain = cereal.DataLoader([cereal.ArraySampleSource(data), cereal.BatchTransform(8)])
    changed, _, _ = loader.next_batch(loader.init_state(0))
    kept, _, _ = plain.next_batch(plain.init_state(0))
    assert (changed["image"] == 255 - kept["image"]).all()


def test_the_example_of_cereals_readme_with_a_disk_source_runs(mnist):
    images, labels = mnist["train"]

    def sample_fn(index):
        return {"image": images[index], "label": np.int32(labels[index])}

    spec = {"image": jax.ShapeDtypeStruct((28, 28), jnp.uint8), "label": jax.ShapeDtypeStruct((), jnp.int32)}
    disk = cereal.DiskSampleSource(300, sample_fn, spec, prefetch_size=64)
    files = cereal.MNISTDiskSource(split="train", prefetch_size=64)
    loaders = [cereal.DataLoader([source, cereal.BatchTransform(64)]) for source in (disk, files)]
    first, second = [loader.next_batch(loader.init_state(3)) for loader in loaders]
    assert (first[0]["label"] == second[0]["label"]).all()
    assert (first[0]["image"] == second[0]["image"][..., 0]).all()


def test_every_name_is_there():
    module = importlib.import_module("bushel.jit.cereal")
    assert all(hasattr(module, name) for name in module.__all__)


def test_the_masked_mean_divides_by_what_is_real():
    loss = jnp.array([1.0, 2.0, 30.0])
    mask = jnp.array([True, True, False])
    assert float(masked_mean(loss, mask)) == 1.5
    assert float(masked_mean(jnp.ones((3, 4)), mask)) == 1.0
    assert float(masked_mean(jnp.array([jnp.nan]), jnp.array([False]))) == 0.0
    with pytest.raises(ValueError, match=r"the shape of values, \[2\], must begin with the mask's \[3\]"):
        masked_mean(jnp.ones(2), mask)
