"""Several datasets as one: mixtures, concatenation, zip, interleaving, windows, prefetching."""

import grain

low = grain.MapDataset.range(10)
high = grain.MapDataset.range(100, 130)

print(list(grain.MapDataset.mix([low, high], weights=[0.3, 0.7])))
print(list(grain.MapDataset.concatenate([low[::3], high[::10]])))
print(list(grain.experimental.ZipMapDataset([low, high[:10]]))[-1])
mixed = grain.IterDataset.mix(
    {"low": low.seed(1).shuffle().repeat().to_iter_dataset(), "high": high.to_iter_dataset()}, {"low": 1, "high": 2}
)
print(list(mixed))
parts = [grain.MapDataset.range(start, start + 5).to_iter_dataset() for start in (0, 10, 20)]
print(list(grain.experimental.InterleaveIterDataset(parts, cycle_length=2)))
windows = low.to_iter_dataset().pipe(grain.experimental.WindowShuffleIterDataset, window_size=4, seed=3)
print(list(windows))
print(list(grain.experimental.LimitIterDataset(grain.experimental.RepeatIterDataset(windows, 3), 25)))
batches = low.batch(4).to_iter_dataset()
print([batch.tolist() for batch in grain.experimental.RebatchIterDataset(batches, 3)])
print(list(low.to_iter_dataset().pipe(grain.experimental.ThreadPrefetchIterDataset, prefetch_buffer_size=3)))


class Copies(grain.experimental.FlatMapTransform):
    max_fan_out = 3

    def flat_map(self, element):
        return [element] * (element % 3)


print(list(low.to_iter_dataset().pipe(grain.experimental.FlatMapIterDataset, Copies())))


class EvensFirst(grain.transforms.DatasetSelectionMap):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return (0, 2 * index) if index < 5 else (1, index)


print(list(grain.MapDataset.select_from_datasets([low, high], EvensFirst())))
