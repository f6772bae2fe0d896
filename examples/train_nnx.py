"""A Flax NNX training loop with a DataLoader, whose Orbax checkpoints hold model, optimizer and position in the data.

    python examples/train_nnx.py --checkpoints /tmp/run             # stop it at any time, in any way
    python examples/train_nnx.py --checkpoints /tmp/run             # the same command goes on
    python examples/train_nnx.py --checkpoints /tmp/run --workers 4 # so does this: workers change nothing

Each line has the step and the loss, once to read and once to the last bit. Needs flax, optax, and the extra orbax.
"""

import argparse
from pathlib import Path

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

import bushel

jax.config.update("jax_platforms", "cpu")  # the network is too small to be worth an accelerator

DATA = Path(__file__).parent / "data" / "digits.npz"
BATCH = 64


class Digits(bushel.RandomAccessDataSource):
    """Handwritten digits, read one at a time."""

    def __init__(self):
        with np.load(DATA) as arrays:
            self._images, self._labels = arrays["image"], arrays["label"]

    def __len__(self):
        return len(self._labels)

    def __getitem__(self, index):
        return {"image": self._images[index], "label": self._labels[index]}

    def fingerprint(self):
        return bushel.sources.file_fingerprint(DATA)

    def __repr__(self):
        return "Digits()"


class Normalise(bushel.MapTransform):
    def map(self, element):
        return {"image": element["image"].astype(np.float32) / 16, "label": element["label"]}


class RandomFlip(bushel.RandomMapTransform):
    def random_map(self, element, rng):
        if rng.random() < 0.5:
            element = {**element, "image": np.fliplr(element["image"])}
        return element


class Network(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(64, 128, rngs=rngs)
        self.second = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, images):
        return self.second(nnx.relu(self.first(images.reshape(len(images), -1))))


@nnx.jit
def train_step(model, optimizer, batch):
    def loss_fn(model):
        scores = model(batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(scores, batch["label"]).mean()

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


def batches(workers):
    source = Digits()
    sampler = bushel.IndexSampler(
        num_records=len(source),
        shard_options=bushel.ShardByJaxProcess(drop_remainder=True),
        shuffle=True,
        num_epochs=None,
        seed=42,
    )
    return bushel.DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[Normalise(), RandomFlip(), bushel.Batch(BATCH, drop_remainder=True)],
        worker_count=workers,
    )


def parse():
    parser = argparse.ArgumentParser(description="Trains on handwritten digits; goes on where it was stopped.")
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder of the run")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10, help="steps from checkpoint to checkpoint")
    parser.add_argument("--workers", type=int, default=0)
    return parser.parse_args()


def main():
    options = parse()
    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    with (
        iter(batches(options.workers)) as data,
        ocp.CheckpointManager(
            options.checkpoints.absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=2)
        ) as manager,
    ):
        start = manager.latest_step() or 0
        if start:
            restored = manager.restore(
                start,
                args=ocp.args.Composite(
                    model=ocp.args.StandardRestore(nnx.to_pure_dict(nnx.state(model))),
                    optimizer=ocp.args.StandardRestore(nnx.to_pure_dict(nnx.state(optimizer))),
                    data=bushel.checkpoint.CheckpointRestore(data),
                ),
            )
            for part, name in ((model, "model"), (optimizer, "optimizer")):
                state = nnx.state(part)
                nnx.replace_by_pure_dict(state, restored[name])
                nnx.update(part, state)
        for step in range(start + 1, options.steps + 1):
            loss = float(train_step(model, optimizer, next(data)))
            print(f"step {step:4d}   loss {loss:.4f}   {loss.hex()}", flush=True)
            if step % options.every == 0:
                manager.save(
                    step,
                    args=ocp.args.Composite(
                        model=ocp.args.StandardSave(nnx.to_pure_dict(nnx.state(model))),
                        optimizer=ocp.args.StandardSave(nnx.to_pure_dict(nnx.state(optimizer))),
                        data=bushel.checkpoint.CheckpointSave(data),
                    ),
                )
        manager.wait_until_finished()


if __name__ == "__main__":
    main()
