"""Train a small network on handwritten digits, then stop a second run halfway, resume it, and compare.

The pipeline is Bushel's; the network, the optimiser and the training step are plain JAX.
"""

import json
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import bushel

jax.config.update("jax_platforms", "cpu")  # the network is too small to be worth an accelerator

STEPS = 400
STOP_AT = 150  # inside an epoch: 23 batches each
BATCH = 64
HIDDEN = 256
LEARNING_RATE = 0.2  # falls to zero over the run
MOMENTUM = 0.9
DATA = Path(__file__).parent / "data" / "digits.npz"


# The data.


def normalise(digit):
    return {"image": digit["image"].astype(np.float32) / 16, "label": digit["label"]}


def shift(digit, rng):
    """Move about half of the images by up to one pixel; `rng` belongs to this element of this epoch."""
    if rng.random() < 0.5:
        return digit
    row, column = rng.integers(0, 3, size=2)
    image = np.pad(digit["image"], 1)[row : row + 8, column : column + 8]
    return {"image": image, "label": digit["label"]}


def datasets():
    """Endless training batches, and the held-out digits as one batch."""
    with np.load(DATA) as arrays:
        source = bushel.sources.ArrayDataSource({"image": arrays["image"], "label": arrays["label"]})
    digits = bushel.MapDataset.source(source)
    training = (
        digits[:1500].seed(0).shuffle().map(normalise).random_map(shift).batch(BATCH, drop_remainder=True).repeat()
    )
    held_out = digits[1500:].map(normalise)
    return training, held_out.batch(len(held_out))[0]


# The network.


def init():
    """The weights and their momentum, before the first step."""
    first, second = jax.random.split(jax.random.key(0))
    params = {
        "w1": jax.random.normal(first, (64, HIDDEN)) * np.sqrt(2 / 64),
        "b1": jnp.zeros(HIDDEN),
        "w2": jax.random.normal(second, (HIDDEN, 10)) * np.sqrt(1 / HIDDEN),
        "b2": jnp.zeros(10),
    }
    return {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params)}


def logits(params, images):
    hidden = jax.nn.relu(images.reshape(len(images), 64) @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def loss_fn(params, batch):
    scores = jax.nn.log_softmax(logits(params, batch["image"]))
    return -jnp.take_along_axis(scores, batch["label"][:, None].astype(jnp.int32), axis=1).mean()


@jax.jit
def train_step(model, batch, step):
    loss, grads = jax.value_and_grad(loss_fn)(model["params"], batch)
    momentum = jax.tree.map(lambda m, g: MOMENTUM * m + g, model["momentum"], grads)
    rate = LEARNING_RATE * (1 - step / STEPS)
    params = jax.tree.map(lambda p, m: p - rate * m, model["params"], momentum)
    return {"params": params, "momentum": momentum}, loss


@jax.jit
def accuracy(params, batch):
    return (logits(params, batch["image"]).argmax(axis=1) == batch["label"]).mean()


# Training, saving, restoring.


def train(model, batches, steps, held_out):
    """Take the given steps; progress is one line that moves, or a few lines when this is no terminal."""
    live = sys.stdout.isatty()
    for step in steps:
        model, loss = train_step(model, next(batches), step)
        done = step + 1
        if done % (10 if live else 100) == 0 or done == steps.stop:
            correct = accuracy(model["params"], held_out)
            line = f"  step {done:3d} of {STEPS}   loss {loss:.3f}   held-out accuracy {correct:.3f}"
            print(f"\r{line}" if live else line, end="" if live else "\n", flush=True)
    if live:
        print()
    return model


def save(folder, step, model, batches):
    """The position in the data is a few integers, so it is saved as text; the weights are arrays."""
    (folder / "data.json").write_text(json.dumps({"step": step, "iterator": batches.get_state()}))
    np.savez(folder / "params.npz", **model["params"])
    np.savez(folder / "momentum.npz", **model["momentum"])


def restore(folder, batches):
    saved = json.loads((folder / "data.json").read_text())
    batches.set_state(saved["iterator"])
    model = {}
    for part in ("params", "momentum"):
        with np.load(folder / f"{part}.npz") as arrays:
            model[part] = dict(arrays)
    return saved["step"], model


def same_bits(a, b):
    return all(np.asarray(a[name]).tobytes() == np.asarray(b[name]).tobytes() for name in a)


def main():
    dataset, held_out = datasets()

    print(f"Training on 1,500 handwritten digits, {STEPS} steps of {BATCH}.")
    with iter(dataset) as batches:
        whole = train(init(), batches, range(STEPS), held_out)

    print(f"\nThe same run again, stopped after {STOP_AT} steps.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with iter(dataset) as batches:
            model = train(init(), batches, range(STOP_AT), held_out)
            save(folder, STOP_AT, model, batches)
        print(f"  saved: {(folder / 'data.json').stat().st_size} bytes of JSON for the data, and the weights")

        print("\nRestored in a new pipeline, with a new iterator.")
        dataset, held_out = datasets()
        with iter(dataset) as batches:
            step, model = restore(folder, batches)
            resumed = train(model, batches, range(step, STEPS), held_out)

    if not same_bits(whole["params"], resumed["params"]):
        sys.exit("\nThe resumed run did not end with the weights of the uninterrupted one. Please report it.")
    correct = float(accuracy(whole["params"], held_out))
    if correct < 0.9:
        sys.exit(f"\nHeld-out accuracy is {correct:.3f}, below the 0.9 that this example should reach.")
    print(
        f"\nThe resumed run and the uninterrupted run ended with the same weights, bit for bit."
        f"\nHeld-out accuracy: {correct:.1%}."
    )


if __name__ == "__main__":
    main()
