"""Element types through a pipeline. Each line states what pyright and mypy infer; `tests/test_types.py` runs both."""

from __future__ import annotations

from typing import Any, TypedDict, TypeGuard, assert_type

import numpy as np

import bushel
from bushel import DatasetIterator, ElementOrigin, IterDataset, MapDataset, Report
from bushel.sources import RandomAccessDataSource


class Images:
    """A source that a user has written."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"image": np.zeros(3)}


class Example(TypedDict):
    image: np.ndarray
    label: int


def length(word: str) -> int:
    return len(word)


def maybe(number: int) -> str | None:
    return str(number) if number else None


def is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


numbers = MapDataset.range(3)
words = MapDataset.source(["a", "b"])
images = MapDataset.source(Images())
mixed_values: MapDataset[dict[str, Any]] = numbers.map(lambda x: {"x": x, "text": {"en": "a"}})
untyped: MapDataset[Any] = MapDataset.source(np.zeros(3))
source: RandomAccessDataSource[dict[str, np.ndarray]] = Images()
also_a_source: RandomAccessDataSource[int] = numbers

# Where elements come from.
assert_type(numbers, MapDataset[int])
assert_type(words, MapDataset[str])
assert_type(images, MapDataset[dict[str, np.ndarray]])
assert_type(MapDataset.source(source), MapDataset[dict[str, np.ndarray]])
assert_type(MapDataset.source(numbers), MapDataset[int])
assert_type(MapDataset.source(bushel.sources.ArrayDataSource({"x": np.zeros(3)})), MapDataset[Any])
assert_type(MapDataset.source(bushel.sources.ArrayRecordDataSource("a.array_record")), MapDataset[bytes])
assert_type(MapDataset.source(bushel.sources.ParquetDataSource("a.parquet")), MapDataset[dict[str, Any]])
assert_type(bushel.sources.open("a.bagz"), RandomAccessDataSource[Any])
assert_type(MapDataset.source(bushel.sources.open("a.bagz")), MapDataset[Any])
assert_type(bushel.experimental.TFRecordIterDataset("a.tfrecord"), bushel.experimental.TFRecordIterDataset)
for record in bushel.experimental.TFRecordIterDataset("a.tfrecord"):
    assert_type(record, bytes)
for number in bushel.IterDataset.source([1, 2]):
    assert_type(number, int)

# Indices, and operations that keep elements as they are.
assert_type(words[0], str)
assert_type(words[1:], MapDataset[str])
assert_type(words.seed(1).shuffle().repeat(2).slice([0, 1]), MapDataset[str])
assert_type(words.window_shuffle(2, seed=1), MapDataset[str])
assert_type(words.where(words.column(len) > 0), MapDataset[str])
assert_type(words.get([0]), list[str])


def count(ds: bushel.Dataset[str]) -> int:
    assert_type(next(iter(ds)), str)
    assert_type(ds.pipe(lambda same: same), bushel.Dataset[str])
    return sum(len(word) for word in ds)


assert_type(count(words) + count(words.to_iter_dataset()), int)
assert_type(IterDataset.source(["a"]), IterDataset[str])
assert_type(IterDataset.source(lambda: range(3)), IterDataset[int])
assert_type(words.where(lambda word: len(word) > 2).order_by(len).sample(len, seed=1), MapDataset[str])
assert_type(words.take(3).skip(1).limit(1), MapDataset[str])
assert_type(numbers + words, MapDataset[int | str])
assert_type(words.split([0.9, 0.1], by=lambda word: len(word)), tuple[MapDataset[str], ...])
assert_type(words.split({"train": 0.9, "test": 0.1}), dict[str, MapDataset[str]])
assert_type(words.sample([1, 2], seed=1).order_by([1, 2]), MapDataset[str])
assert_type(words.filter(lambda word: len(word) % 2), MapDataset[str])
assert_type(words.filter(lambda word: np.all(np.array([word]) == "a")), MapDataset[str])
assert_type(images.filter(lambda example: example["image"].any()), MapDataset[dict[str, np.ndarray]])
assert_type(MapDataset.source([1, "a"]).filter(is_text), MapDataset[str])
assert_type(words.to_iter_dataset(), IterDataset[str])
assert_type(words.to_iter_dataset(allow_nones=True), IterDataset[str | None])
assert_type(
    words.to_iter_dataset().filter(is_text).seed(1).window_shuffle(3).limit(3).take(2).skip(1).repeat(2),
    IterDataset[str],
)
assert_type(words.to_iter_dataset().mp_prefetch().cache().prefetch(2), IterDataset[str])
assert_type(words.to_iter_dataset().with_options(on_error="skip"), IterDataset[str])
assert_type(words.to_iter_dataset().ray_prefetch(), IterDataset[str])

# Functions of elements. A function that returns None drops the element.
assert_type(words.map(length), MapDataset[int])
assert_type(words.map(len), MapDataset[int])
assert_type(words.map(lambda word: word.upper()), MapDataset[str])
assert_type(words.to_iter_dataset().map(length), IterDataset[int])
assert_type(numbers.map(maybe), MapDataset[str])
assert_type(numbers.to_iter_dataset().map(maybe), IterDataset[str])
assert_type(words.map_with_index(lambda index, word: (index, word)), MapDataset[tuple[int, str]])
assert_type(words.seed(1).random_map(lambda word, rng: rng.random()), MapDataset[float])
assert_type(words.to_iter_dataset().flat_map(lambda word: [len(word)]), IterDataset[int])
assert_type(numbers.map(lambda xs: xs * 2, vectorized=True), MapDataset[Any])
assert_type(numbers.filter(lambda xs: xs > 2, vectorized=True), MapDataset[int])

# Several datasets.
assert_type(numbers.zip(words), MapDataset[tuple[int, str]])
assert_type(numbers.zip(words, images), MapDataset[tuple[int, str, dict[str, np.ndarray]]])
assert_type(numbers.to_iter_dataset().zip(words.to_iter_dataset(), strict=False), IterDataset[tuple[int, str]])
assert_type(numbers.zip(*[words, words]), MapDataset[tuple[Any, ...]])
assert_type(MapDataset.mix([numbers, numbers[1:]], [1, 2]), MapDataset[int])
assert_type(MapDataset.mix([numbers, numbers], "size", temperature=2.0), MapDataset[int])
assert_type(MapDataset.concatenate([numbers, numbers.map(float)]), MapDataset[float])
assert_type(IterDataset.mix([numbers.to_iter_dataset()] * 2), IterDataset[int])
assert_type(IterDataset.mix({"a": words.to_iter_dataset()}, {"a": 1.0}), IterDataset[str])
either: MapDataset[int | str] = MapDataset.mix([numbers, words])
wider: MapDataset[object] = words

# Batches. Leaves become arrays, and a dict keeps its keys. Of other structures, types cannot say what they become.
assert_type(numbers.batch(2), MapDataset[np.ndarray])
assert_type(words.batch(2), MapDataset[np.ndarray])
assert_type(numbers.map(float).to_iter_dataset().batch(2), IterDataset[np.ndarray])
assert_type(numbers.map(np.float32).batch(2, drop_remainder=True), MapDataset[np.ndarray])
assert_type(images.batch(2), MapDataset[dict[str, np.ndarray]])
assert_type(images.to_iter_dataset().batch(2).rebatch(3), IterDataset[dict[str, np.ndarray]])
assert_type(numbers.map(lambda x: {"x": x, "y": x}).batch(2), MapDataset[dict[str, np.ndarray]])
assert_type(numbers.map(lambda x: {"x": {"y": x}}).batch(2), MapDataset[dict[str, Any]])
assert_type(mixed_values.batch(2), MapDataset[dict[str, Any]])
assert_type(mixed_values.to_iter_dataset().batch(2), IterDataset[dict[str, Any]])
assert_type(untyped.batch(2), MapDataset[Any])
assert_type(untyped.to_iter_dataset().batch(2), IterDataset[Any])
assert_type(numbers.zip(words).batch(2), MapDataset[Any])
assert_type(words.batch(2, batch_fn=list), MapDataset[list[str]])
assert_type(words.to_iter_dataset().batch(2, batch_fn=tuple), IterDataset[tuple[str, ...]])
assert_type(MapDataset.source([Example(image=np.zeros(2), label=1)]).batch(2), MapDataset[Any])
stated: MapDataset[Example] = MapDataset.source([Example(image=np.zeros(2), label=1)]).batch(2)
assert_type(words.pack([1, 1], 2)[0], dict[str, np.ndarray])
assert_type(images.to_device(), IterDataset[Any])


# Functions on datasets.
def doubled(ds: MapDataset[int], factor: int) -> MapDataset[float]:
    return ds.map(lambda x: float(x * factor))


assert_type(numbers.pipe(doubled, 3), MapDataset[float])
assert_type(numbers.apply(bushel.Batch(2)), MapDataset[Any])

assert_type(numbers[np.int64(0)], int)
assert_type(words.to_iter_dataset().with_options(on_error="skip", skip_limit=3), IterDataset[str])
assert_type(words.to_iter_dataset().mp_prefetch(4), IterDataset[str])
assert_type(words.to_iter_dataset().mp_prefetch(num_workers=4), IterDataset[str])
some_workers: bushel.WorkerOptions | int | None = bushel.MultiprocessingOptions(2)
assert_type(words.column(len, workers=some_workers), bushel.Column)
pipeline_options: bushel.DatasetOptions = bushel.DatasetOptions(on_error="skip")

# Iterators.
# mypy takes `iter(images)` for Any, since a MapDataset also has indices and `np.ndarray` contains Any.
assert_type(iter(words), DatasetIterator[str])
iterator = iter(images.to_iter_dataset())
assert_type(iterator, DatasetIterator[dict[str, np.ndarray]])
assert_type(next(iterator), dict[str, np.ndarray])
assert_type(iterator.get_state(), dict[str, Any])
iterator.set_state(iterator.get_state(), check=False)
iter(words).set_state({}, check=False)
assert_type(iterator.report(), Report)
assert_type(iterator.skipped, int)
assert_type(iterator.origins(), list[ElementOrigin])
assert_type(len(numbers.to_iter_dataset()), int)
with iter(words.to_iter_dataset()) as word_iterator:
    for word in word_iterator:
        assert_type(word, str)
wider_iterator: DatasetIterator[object] = word_iterator

# A DataLoader applies a list of operations, of which types cannot say what they make of the records.
loader = bushel.DataLoader(data_source=Images(), sampler=bushel.SequentialSampler(3), operations=[bushel.Batch(2)])
assert_type(loader, bushel.DataLoader[Any])
stated_loader: bushel.DataLoader[dict[str, np.ndarray]] = loader
assert_type(next(iter(stated_loader)), dict[str, np.ndarray])
