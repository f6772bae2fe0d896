"""Feed a small language model with Python's own library: filtered, packed, mixed by a schedule, stopped and resumed.

The text is that of the modules that come with Python: their docstrings, and the code of their functions. The model is
plain JAX: each token guesses the next one of its own segment, from itself and the token before.
"""

import ast
import collections
import functools
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import bushel

jax.config.update("jax_platforms", "cpu")  # the model is too small to be worth an accelerator

STEPS = 90
STOP_AT = 40
BATCH = 8
LENGTH = 256  # tokens of a row
WORDS = 1024  # the most frequent ones; all others are one token
SCHEDULE = [(0, [0.9, 0.1]), (300, [0.5, 0.5])]  # prose first, then more code; positions count rows
WIDTH = 32
LEARNING_RATE = 2.0


# The data.


def texts():
    """Docstrings and function bodies of the modules beside `os`."""
    prose, code = [], []
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (told := ast.get_docstring(node)):
                prose.append(told)
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                code.append(ast.unparse(ast.Module(body, [])))
    return prose, code


def tokenised(corpora):
    """Each corpus as one long array of tokens, and where its texts begin. 0 is no token, 1 an unknown word."""
    split = [[re.findall(r"\w+|[^\w\s]", text) for text in corpus] for corpus in corpora]
    counts = collections.Counter(word for corpus in split for text in corpus for word in text)
    names = {word: number for number, (word, _) in enumerate(counts.most_common(WORDS - 2), start=2)}
    for corpus in split:
        values = np.array([names.get(word, 1) for text in corpus for word in text], dtype=np.int32)
        yield values, np.cumsum([0] + [len(text) for text in corpus])


def length(element):
    return len(element["tokens"])


def packed(values, offsets, cache):
    """Rows of LENGTH tokens: texts that are neither trivial nor too long, each whole."""
    ds = bushel.MapDataset.source(bushel.sources.RaggedDataSource({"tokens": values}, offsets))
    lengths = ds.column(length, cache_dir=cache)
    fitting = ds.where((lengths >= 8) & (lengths <= LENGTH))
    return len(fitting), fitting.pack(lengths, {"tokens": LENGTH}, seed=0)


def dataset(corpora, cache):
    """Endless batches of packed rows of prose and code."""
    parts = []
    for name, (values, offsets) in zip(("prose", "code"), corpora, strict=True):
        count, rows = packed(values, offsets, cache)
        full = rows.efficiency["tokens"]
        print(f"  {name}: {len(offsets) - 1:,} texts, {count:,} of them in {len(rows):,} rows that are {full:.1%} full")
        parts.append(rows.seed(0).shuffle())
    return bushel.MapDataset.mix(parts, SCHEDULE, when_exhausted="restart").batch(BATCH)


# The model.


def init():
    first, second, third = jax.random.split(jax.random.key(0), 3)
    return {
        "this": jax.random.normal(first, (WORDS, WIDTH)) * 0.1,
        "before": jax.random.normal(second, (WORDS, WIDTH)) * 0.1,
        "out": jax.random.normal(third, (WIDTH, WORDS)) * 0.1,
    }


def loss_fn(params, batch):
    """The mean surprise at the next token, where there is one in the same segment."""
    tokens, ids = batch["tokens"], batch["tokens_segment_ids"]
    this, after = tokens[:, 1:-1], tokens[:, 2:]
    before = jnp.where(batch["tokens_positions"][:, 1:-1] > 0, tokens[:, :-2], 0)
    counts = (ids[:, 1:-1] == ids[:, 2:]) & (ids[:, 2:] > 0)
    scores = jax.nn.log_softmax(jnp.tanh(params["this"][this] + params["before"][before]) @ params["out"])
    surprise = -jnp.take_along_axis(scores, after[..., None], axis=-1)[..., 0]
    return (surprise * counts).sum() / counts.sum()


@functools.partial(jax.jit, donate_argnums=0)
def train_step(params, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), loss


def train(params, batches, steps):
    losses = []
    for step in steps:
        params, loss = train_step(params, next(batches))
        losses.append(float(loss))
        if (step + 1) % 30 == 0 or step + 1 == steps.stop:
            print(f"  step {step + 1:3d} of {STEPS}   loss {np.mean(losses[-10:]):.3f}")
    return params, losses


def main():
    with tempfile.TemporaryDirectory() as cache:
        print("Tokenising Python's own library.")
        corpora = list(tokenised(texts()))
        ds = dataset(corpora, cache)

        step = ds.origin(50)
        shares = collections.Counter(record.component for record in step.records)
        told = " and ".join(f"{shares[component]} of component {component[0]}" for component in sorted(shares))
        print(f"  step 50 will be made of {len(step.records)} texts, {told}; the first is {step.records[0]}")

        print(f"\nTraining, {STEPS} steps of {BATCH} rows.")
        with iter(ds) as batches:
            whole, losses = train(init(), batches, range(STEPS))

        print(f"\nThe same run again, stopped after {STOP_AT} steps.")
        with iter(ds) as batches:
            params, _ = train(init(), batches, range(STOP_AT))
            state = json.dumps(batches.get_state())

        print("\nRestored in a new pipeline, whose columns were saved.")
        ds = dataset(corpora, cache)
        with iter(ds) as batches:
            batches.set_state(json.loads(state))
            resumed, _ = train(params, batches, range(STOP_AT, STEPS))

    if not all(np.asarray(whole[name]).tobytes() == np.asarray(resumed[name]).tobytes() for name in whole):
        sys.exit("\nThe resumed run did not end with the weights of the uninterrupted one. Please report it.")
    if np.mean(losses[-20:]) > np.mean(losses[:5]) - 1:
        sys.exit(f"\nThe loss went from {losses[0]:.2f} to {losses[-1]:.2f} only, less than this example should reach.")
    print("\nThe resumed run and the uninterrupted run ended with the same weights, bit for bit.")


if __name__ == "__main__":
    main()
