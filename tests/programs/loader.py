"""A DataLoader with a source, a sampler and transformations, run by absl as such programs are."""

# Its parameters have names of their own, as in Grain's documentation. Grain's types do not allow that.
# pyright: reportIncompatibleMethodOverride=false

import json

import grain.python as pygrain
import numpy as np
from absl import app


class Digits(pygrain.RandomAccessDataSource):
    """Images and labels, made up."""

    def __init__(self, count):
        rng = np.random.default_rng(0)
        self._images = rng.integers(0, 256, (count, 4, 4), dtype=np.uint8)
        self._labels = rng.integers(0, 10, (count,))

    def __len__(self):
        return len(self._labels)

    def __getitem__(self, index):
        return {"image": self._images[index], "label": self._labels[index]}

    def __repr__(self):
        return f"Digits({len(self)})"


class Normalise(pygrain.MapTransform):
    def map(self, features):
        return {**features, "image": features["image"].astype(np.float32) / 255}


class Flip(pygrain.RandomMapTransform):
    def random_map(self, features, rng):
        if rng.random() > 0.5:
            features = {**features, "image": np.fliplr(features["image"])}
        return features


class Even(pygrain.FilterTransform):
    def filter(self, features):
        return features["label"] % 2 == 0


def show(name, element):
    print(name, element["image"].shape, element["image"].dtype, f"{element['image'].sum():.4f}", element["label"])


def main(argv):
    del argv
    source = Digits(50)
    sampler = pygrain.IndexSampler(
        num_records=len(source), shard_options=pygrain.NoSharding(), shuffle=True, num_epochs=2, seed=42
    )
    loader = pygrain.DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[Normalise(), Flip(), Even(), pygrain.Batch(batch_size=6, drop_remainder=True)],
    )
    iterator = iter(loader)
    for _ in range(3):
        show("batch", next(iterator))
    state = iterator.get_state()
    saved = json.loads(state)
    print({key: saved[key] for key in ("version", "last_seen_indices", "worker_count", "sampler", "data_source")})
    batch = next(iterator)
    again = iter(loader)
    again.set_state(state)
    print(np.array_equal(batch["image"], next(again)["image"]), sum(1 for _ in iterator))

    # With workers, one element for each record.
    for shard in range(2):
        options = pygrain.ShardOptions(shard_index=shard, shard_count=2, drop_remainder=True)
        sampler = pygrain.IndexSampler(50, options, shuffle=True, num_epochs=1, seed=7)
        parallel = pygrain.DataLoader(
            data_source=source, sampler=sampler, operations=[Normalise(), Flip()], worker_count=2
        )
        elements = list(parallel)
        print(shard, len(elements), [int(element["label"]) for element in elements])
        show("element", elements[-1])


if __name__ == "__main__":
    app.run(main)
