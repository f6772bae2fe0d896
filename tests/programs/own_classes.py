"""Datasets, iterators and transformations of one's own; options; a worker that uses a module of the program."""

import grain
import numpy as np
from absl import app
from helper_module import Centre


class Doubled(grain.MapDataset):
    """Each element twice."""

    def __len__(self):
        return 2 * len(self._parent)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return self.slice(index)
        return self._parent[index // 2]


class Countdown(grain.IterDataset):
    def __init__(self, start):
        super().__init__()
        self.start = start

    def __iter__(self):
        return CountdownIterator(self.start)


class CountdownIterator(grain.DatasetIterator):
    def __init__(self, start):
        super().__init__()
        self.left = start

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

    def get_state(self):
        return {"left": self.left}

    def set_state(self, state):
        self.left = state["left"]


def main(argv):
    del argv
    print(list(Doubled(grain.MapDataset.range(4)).map(lambda x: x + 1)))
    countdown = Countdown(7).map(lambda x: x * x).batch(3)
    print([batch.tolist() for batch in countdown])
    iterator = iter(Countdown(5).filter(lambda x: x != 3))
    print(next(iterator), next(iterator), list(iterator))
    options = grain.experimental.DatasetOptions(filter_raise_threshold_ratio=0.999)
    stream = grain.MapDataset.range(3000).to_iter_dataset().filter(lambda x: x >= 2000)
    try:
        next(iter(grain.experimental.WithOptionsIterDataset(stream, options)))
    except ValueError:
        print("too many dropped")
    arrays = [np.arange(n, n + 3, dtype=np.float64) for n in range(6)]
    workers = grain.MultiprocessingOptions(num_workers=2)
    parallel = grain.MapDataset.source(arrays).map(Centre()).to_iter_dataset().mp_prefetch(workers)
    print([np.asarray(element).tolist() for element in parallel])
    shard = grain.sharding.ShardByJaxProcess(drop_remainder=True)
    print(shard.shard_index, shard.shard_count)
    elastic = grain.experimental.ElasticIterator(grain.MapDataset.range(12).shuffle(seed=1), 6, shard)
    print([batch.tolist() for batch in elastic])
    on_device = grain.experimental.device_put(grain.MapDataset.range(6).batch(3).to_iter_dataset(), None)
    print([(type(batch).__name__, batch.tolist()) for batch in on_device])


if __name__ == "__main__":
    app.run(main)
