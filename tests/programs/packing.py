"""Sequences of many lengths in rows of one: first fit, best fit, concatenate and split, padding."""

import functools

import grain
import numpy as np

texts = [
    {"tokens": np.arange(1, n + 1, dtype=np.int32), "weights": np.full(n, n, dtype=np.float32)}
    for n in (3, 7, 2, 5, 1, 8, 4, 6)
]
stream = grain.MapDataset.source(texts).seed(2).shuffle().to_iter_dataset()
lengths = {"tokens": 8, "weights": 8}

for name in ("FirstFitPackIterDataset", "BestFitPackIterDataset"):
    packed = getattr(grain.experimental, name)(stream, length_struct=lengths, num_packing_bins=3, seed=1)
    for row in packed:
        print(name, {key: row[key].tolist() for key in sorted(row)})

only_tokens = stream.map(lambda text: {"tokens": text["tokens"]})
split = grain.experimental.ConcatThenSplitIterDataset(
    only_tokens,
    length_struct={"tokens": 6},
    bos_handling=grain.experimental.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS,
    bos_features=("tokens",),
    bos_token_id=99,
)
for row in split:
    print({key: row[key].tolist() for key in sorted(row)})

pad = functools.partial(grain.experimental.batch_and_pad, batch_size=3, pad_value=-1)
print([batch.tolist() for batch in grain.MapDataset.range(8).batch(3, batch_fn=pad)])

iterator = iter(split)
head = [next(iterator)["tokens"].tolist() for _ in range(2)]
state = iterator.get_state()
rest = [row["tokens"].tolist() for row in iterator]
iterator = iter(split)
iterator.set_state(state)
print(head, rest == [row["tokens"].tolist() for row in iterator])
