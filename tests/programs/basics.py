"""First steps with datasets: sources, maps, filters, shuffles, batches, streams and their states."""

import grain
import numpy as np


def plus_noise(x, rng):
    return round(float(x + rng.normal()), 6)


class Square(grain.transforms.Map):
    def map(self, element):
        return element**2


dataset = grain.MapDataset.source(list(range(20, 40)))
print(len(dataset), dataset[3], dataset[-1], dataset[45])
print(list(dataset.map(lambda x: x + 1).filter(lambda x: x % 2 == 0)))
print(list(dataset.seed(3).shuffle()[:5]))
print([batch.tolist() for batch in dataset.shuffle(seed=1).batch(8)])
print(list(dataset.seed(10).random_map(plus_noise))[:3])
print(list(dataset.slice(slice(2, 8)).repeat(2).map_with_index(lambda i, x: (i, x))))
print([b.tolist() for b in dataset.to_iter_dataset().map(Square()).filter(lambda x: x > 900).batch(4)])

iterator = iter(dataset.seed(7).shuffle().map(Square()).batch(3).repeat().to_iter_dataset())
first = [next(iterator).tolist() for _ in range(3)]
state = iterator.get_state()
print(first, state["next_index"])
rest = [next(iterator).tolist() for _ in range(6)]
iterator.set_state(state)
print(rest == [next(iterator).tolist() for _ in range(6)], rest[-1])
print(grain.experimental.get_element_spec(grain.MapDataset.range(9).batch(4, drop_remainder=True)))
print(np.sum([grain.experimental.index_shuffle(i, 99, 5, 4) for i in range(100)]))
