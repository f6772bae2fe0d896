"""Sentences for names and arguments that do not exist: what people who know another library should write here.

The tables are data: a name as PyTorch, tf.data, Hugging Face datasets or Ray have it, and the way out. A class looks
its missing names up in its `__getattr__`, and a function its unknown arguments with `explains_arguments`. Nothing is
added to a class for a name in a table, so `dir` and `hasattr` tell the truth.
"""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from bushel._src.base.errors import BushelDeprecationWarning

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

_LENGTH = "Write `len(ds)`."
_SHAPES = "`ds.describe()` shows the shapes and dtypes of the elements."
_READ = "Write `list(ds)`, or `for element in ds: ...`."
_RENAME = "Write `ds.map(...)` with a function that returns the dict you want."
_DEVICE = "Write `ds.to_device()` as the last operation, for arrays of JAX on an accelerator."
_FORMAT = f"Elements are NumPy arrays already. {_DEVICE}"
_SAVE = 'Write `ds.save(folder)`, or `ds.save(folder, format="parquet")` for other programs.'
_JOIN = "Write `a + b` for MapDatasets, or `bushel.MapDataset.concatenate([a, b, c])`."
_MIX = "Write `bushel.MapDataset.mix([a, b], weights=[2, 1])`."
_POSITION = "An iterator has the position: `it = iter(ds)`, then `it.{}`."
_PADDED = (
    "Write `.batch(n, batch_fn=...)` with a function that pads, or `ds.bucket(lengths, boundaries, n)` on a MapDataset."
)
_WORKERS = "Workers compute the whole pipeline: write `.mp_prefetch(num_workers=4)` last."
_FRAME = "Write `ds.to_pandas()`, or `ds.to_arrow()`, which `polars.from_arrow` takes."
_SPLIT = "Write `train, validation = ds.split([0.9, 0.1])` on a MapDataset."
_EPOCHS = "`ds.shuffle(seed=0).repeat()` has another order in every epoch by itself."
_FROM_FUNCTION = "Write `bushel.IterDataset.source(function)`: the function returns an iterator."
DATASET: Mapping[str, str] = {
    "explain": "Write `ds.origin(index)`.",
    "as_dataset": "This is the dataset: `for element in ds: ...`.",
    "as_numpy": "Elements are NumPy arrays already: `for element in ds: ...`.",
    "as_numpy_iterator": "Elements are NumPy arrays already: `it = iter(ds)`.",
    "assert_cardinality": _LENGTH,
    "astype": "Write `ds.map(...)` with a function that converts the element.",
    "batch_size": "The size is the argument of `batch`: `ds.describe()` shows all steps.",
    "batched": "Write `ds.batch(n)`.",
    "bucket_by_sequence_length": "Write `ds.bucket(length, boundaries, batch_sizes)` on a MapDataset.",
    "cardinality": _LENGTH,
    "cast": "Write `ds.map(...)` with a function that converts the element.",
    "cast_column": "Write `ds.map(...)` with a function that converts the element.",
    "choose_from_datasets": _MIX,
    "class_encode_column": "Write `ds.map(...)` with a function that converts the element.",
    "collate_fn": "Write `ds.batch(n, batch_fn=...)`.",
    "collect": _READ,
    "column_names": _SHAPES,
    "columns": _SHAPES,
    "concat": _JOIN,
    "concatenate": _JOIN,
    "concatenate_datasets": _JOIN,
    "copy": "A dataset never changes: use the same object again.",
    "count": _LENGTH,
    "create_dict_iterator": "Write `it = iter(ds)`.",
    "create_tuple_iterator": "Write `it = iter(ds)`.",
    "cuda": _DEVICE,
    "data": "Write `ds[i]` for an element.",
    "dataset": "This is the dataset: `for element in ds: ...`.",
    "decode": "Write `ds.map(...)` with a function that decodes the record, such as `bushel.sources.decode_image`.",
    "device": _DEVICE,
    "dtype": _SHAPES,
    "dtypes": _SHAPES,
    "enumerate": "Write `.map_with_index(lambda i, element: (i, element))`.",
    "epoch": _EPOCHS,
    "features": _SHAPES,
    "first": "Write `ds[0]`, or `ds.show()` to look at an element.",
    "flatten": "Write `ds.map(...)` for other elements, or `flat_map` for several elements from each.",
    "foreach": _READ,
    "for_each": _READ,
    "from_generator": _FROM_FUNCTION,
    "from_list": "Write `bushel.MapDataset.source(values)`.",
    "get_item": "Write `ds[i]`.",
    "get_state": _POSITION.format("get_state()"),
    "get_report": "An iterator has it: `it = iter(ds)`, then `it.report()`.",
    "group_by_window": "Write `ds.bucket(length, boundaries, batch_sizes)` on a MapDataset.",
    "head": "Write `ds.take(5)`, or `ds.show()` to look at an element.",
    "info": _SHAPES,
    "interleave": "Write `bushel.experimental.InterleaveIterDataset(streams, cycle_length=4)`.",
    "iter": "Write `it = iter(ds)`.",
    "iter_batches": "Write `for batch in ds.batch(n): ...`.",
    "iterator": "Write `it = iter(ds)`.",
    "len": _LENGTH,
    "length": _LENGTH,
    "load_state_dict": _POSITION.format("set_state(state)"),
    "make_one_shot_iterator": "Write `it = iter(ds)`.",
    "map_batches": "Write `ds.map(function, vectorized=True)`, or `ds.batch(n).map(function)`.",
    "merge": _JOIN,
    "mix": _MIX,
    "next": "Write `it = iter(ds)`, then `next(it)`.",
    "num_columns": _SHAPES,
    "num_rows": _LENGTH,
    "num_workers": _WORKERS,
    "padded_batch": _PADDED,
    "peek": "Write `ds.show()` to look at an element.",
    "pin_memory": _DEVICE,
    "push_to_hub": f"{_SAVE} Then upload the folder.",
    "ragged_batch": _PADDED,
    "random_shuffle": "Write `ds.shuffle(seed=0)`.",
    "random_split": _SPLIT,
    "range": "The class makes datasets: write `bushel.MapDataset.range(n)`.",
    "reduce": "Write `functools.reduce(function, ds, start)`.",
    "rejection_resample": "Write `ds.sample(weights, seed=0)` on a MapDataset.",
    "remove_columns": _RENAME,
    "rename": _RENAME,
    "rename_column": _RENAME,
    "rename_columns": _RENAME,
    "report": "An iterator has it: `it = iter(ds)`, then `it.report()`.",
    "reset": "Write `it = iter(ds)` for a new iterator at the start.",
    "sample_from_datasets": _MIX,
    "save_to_disk": _SAVE,
    "scan": "Write `ds.map(...)`: a function of a dataset sees one element, and keeps nothing between two of them.",
    "select": "Write `ds.slice(positions)` for some of the elements, or `ds.map(...)` for some of their entries.",
    "select_columns": _RENAME,
    "set_epoch": _EPOCHS,
    "set_format": _FORMAT,
    "set_state": _POSITION.format("set_state(state)"),
    "set_transform": "Write `ds.map(...)`.",
    "select_from_datasets": "Write `bushel.MapDataset.select_from_datasets([a, b], selection_map)`.",
    "shape": _SHAPES,
    "shard": "Write `ds[index::count]` on a MapDataset: shard `index` of `count`.",
    "shuffle_buffer": "Write `ds.shuffle(seed=0)`: it shuffles all elements, without a buffer.",
    "size": _LENGTH,
    "snapshot": "Write `ds.save(folder)`, or `.cache(folder)` on a stream.",
    "sort": "Write `ds.order_by(lambda element: ...)` on a MapDataset.",
    "source": "The class makes datasets: write `bushel.MapDataset.source(records)`.",
    "state_dict": _POSITION.format("get_state()"),
    "subset": "Write `ds[a:b]`, or `ds.slice(positions)`.",
    "sum": "Write `sum(ds)`.",
    "tail": "Write `ds[-5:]`.",
    "tfrecord": _SAVE,
    "to": _DEVICE,
    "to_csv": _SAVE,
    "to_dict": _READ,
    "to_dictionary": _READ,
    "to_df": _FRAME,
    "to_polars": _FRAME,
    "to_iterable_dataset": "Write `ds.to_iter_dataset()`.",
    "to_jax": _DEVICE,
    "to_json": _SAVE,
    "to_list": _READ,
    "to_numpy": "Elements are NumPy arrays already: `ds[:n].batch(n)[0]` has the first n of them as one.",
    "to_parquet": _SAVE,
    "to_torch": "Elements are NumPy arrays: `torch.from_numpy(array)` takes them.",
    "train_test_split": _SPLIT,
    "transform": "Write `ds.map(...)`.",
    "union": _JOIN,
    "values": _READ,
    "window": "Write `.batch(n)` for windows that do not overlap, or `ds.slice(positions)` for any others.",
    "with_epoch": _EPOCHS,
    "with_format": _FORMAT,
    "with_transform": "Write `ds.map(...)`.",
}
"""Names that neither kind of dataset has."""

MAP_DATASET: Mapping[str, str] = {
    "unbatch": "Or leave out the `batch` before it.",
}
"""Names that only an IterDataset has, and what a MapDataset has in their place."""

ITER_DATASET: Mapping[str, str] = {
    "enumerate": "Write `.map_with_index(lambda i, element: (i, element))`.",
    "first": "Write `next(iter(stream))`.",
    "head": "Write `stream.take(5)`.",
    "select": "A stream is read in order: write `ds.slice(positions)` before `to_iter_dataset()`.",
    "shuffle": "To shuffle within windows of a stream, use `window_shuffle`.",
    "slice": "The first elements of a stream are `stream.take(n)`.",
    "range": "Write `bushel.MapDataset.range(n).to_iter_dataset()`.",
    "to_iter_dataset": "This is an IterDataset already: leave the call out.",
}
"""Names that an IterDataset has not."""

_OF_DATASETS = (
    *("batch", "cache", "describe", "filter", "flat_map", "limit", "map", "map_with_index", "mp_prefetch", "prefetch"),
    *("random_map", "rebatch", "repeat", "seed", "shuffle", "slice", "to_device", "window_shuffle", "zip"),
)

ITERATOR: dict[str, str] = {
    "get_next_index": "Write `bushel.experimental.get_next_index(it)`.",
    "load_state_dict": "Write `it.set_state(state)`.",
    "next": "Write `next(it)`.",
    "get_next": "Write `next(it)`.",
    "peek": "Write `ds.show()` on the dataset.",
    "reset": "Write `it = iter(ds)` for a new iterator at the start.",
    "restore": "Write `it.set_state(state)`.",
    "save_state": "Write `it.get_state()`.",
    "set_next_index": "Write `it.seek(index)`.",
    "skip": "Write `itertools.islice(it, n, None)`, or `it.seek(step)`.",
    "state": "Write `it.get_state()`.",
    "state_dict": "Write `it.get_state()`.",
    "take": "Write `itertools.islice(it, n)`.",
}
ITERATOR |= {name: f"A dataset has it: write `ds.{name}(...)` before `iter(ds)`." for name in _OF_DATASETS}
"""Names that the iterator of a dataset has not."""

CLASS: Mapping[str, str] = {
    "from_dict": "For columns of arrays write `{0}.source(bushel.sources.ArrayDataSource(columns))`.",
    "from_generator": _FROM_FUNCTION,
    "from_list": "Write `{0}.source(values)`.",
    "from_pandas": "Write `{0}.source(frame)`.",
    "from_tensor_slices": "Write `{0}.source(array)`; for several arrays "
    "`{0}.source(bushel.sources.ArrayDataSource(columns))`.",
    "from_tensors": "Write `{0}.source([element])`.",
    "from_numpy": "Write `{0}.source(array)`.",
    "from_parquet": "Write `{0}.source(bushel.sources.open(path))`.",
    "from_csv": "Write `{0}.source(bushel.sources.open(path))`: the records are the lines.",
    "from_json": "Write `{0}.source(bushel.sources.open(path))`: the records are the lines.",
    "list_files": "Write `{0}.source(bushel.sources.FileDataSource(pattern))`: a record is a whole file.",
    "load_from_disk": "Write `{0}.source(bushel.sources.open(folder))`.",
    "open": "Write `{0}.source(bushel.sources.open(path))`.",
    "load": "Write `{0}.source(bushel.sources.open(path))`.",
    "interleave": "Write `bushel.experimental.InterleaveIterDataset(streams, cycle_length=4)`.",
    "sample_from_datasets": "Write `{0}.mix([a, b], weights=[2, 1])`.",
    "choose_from_datasets": "Write `{0}.mix([a, b], weights=[2, 1])`.",
    "concat": "Write `bushel.MapDataset.concatenate([a, b])`.",
    "concatenate": "Write `bushel.MapDataset.concatenate([a, b])` before `to_iter_dataset()`.",
}
"""Functions that make a dataset elsewhere, as `tf.data.Dataset.from_tensor_slices`."""

LOADER: Mapping[str, str] = {
    "batch": "Write `operations=[..., bushel.Batch(4)]`, or `bushel.load(source, batch_size=4)`.",
    "batch_size": "It is in the operations: `operations=[..., bushel.Batch(4)]`.",
    "dataset": "Write `bushel.MapDataset.source(source)` for a dataset with methods.",
    "get_state": "An iterator has the position: `it = iter(loader)`, then `it.get_state()`.",
    "map": "Write `operations=[...]` with a transformation, or `bushel.MapDataset.source(source).map(function)`.",
    "num_workers": "Write `worker_count=4`.",
    "report": "An iterator has it: `it = iter(loader)`, then `it.report()`.",
    "set_state": "An iterator has the position: `it = iter(loader)`, then `it.set_state(state)`.",
    "shuffle": "Write `sampler=bushel.IndexSampler(len(source), shuffle=True, seed=0)`.",
    "state_dict": "An iterator has the position: `it = iter(loader)`, then `it.get_state()`.",
}
"""Names that a DataLoader has not."""

JIT_LOADER: Mapping[str, str] = {
    "batch_size": "`loader.element_spec()` has the shapes of a batch.",
    "dataset": "Write `loader.source`.",
    "get_state": "The state is a value of yours: `state = loader.init_state(seed)`; each batch returns the next one.",
    "init": "Write `state = loader.init_state(seed)`.",
    "map": "Write `DataLoader([source, MapTransform(function), BatchTransform(4)])`.",
    "reset": "Write `state = loader.init_state(seed)`.",
    "scan": "Write `loader.scan_epoch(state, carry, body)`.",
    "set_state": "The state is a value of yours: pass it to `loader.next_batch(state)`.",
    "shuffle": 'Write `ArraySource(arrays, ordering="shuffle")`.',
    "state": "The state is a value of yours: `state = loader.init_state(seed)`; each batch returns the next one.",
    "state_dict": "Write `loader.save(state)`.",
    "load_state_dict": "Write `state = loader.restore(saved)`.",
}
"""Names that a loader of `bushel.jit` has not."""

TRAJECTORIES: Mapping[str, str] = {
    "map": "Write `ds.traj_map(function)` for whole trajectories, or `ds.frame_map(function)` for frames.",
    "origin": "Write `ds.dataset.origin(index)`.",
    "mp_prefetch": "Write `ds.iterator(workers=4)`.",
    "ray_prefetch": "Write `ds.iterator(workers=bushel.RayOptions())`.",
    "with_options": "Write `ds.ignore_errors()`, or `ds.dataset.to_iter_dataset().with_options(...)`.",
    "to_iter_dataset": "Write `ds.dataset.to_iter_dataset()`, or `ds.iterator(workers=4)`.",
    "seed": "Write `ds.shuffle(seed=0)`.",
    "get_state": "An iterator has the position: `it = ds.iterator()`, then `it.get_state()`.",
    "num_workers": "Write `ds.iterator(workers=4)`.",
    "frames": "Write `ds.flatten()`.",
    "apply": "Write `ds.traj_map(function)` for whole trajectories, or `ds.frame_map(function)` for frames.",
    "concatenate": "Write `TrajectoryDataset.sample_from_datasets([a, b])` after `flatten()`.",
    "interleave": "Write `TrajectoryDataset.sample_from_datasets([a, b])` after `flatten()`.",
}
"""Names that a TrajectoryDataset has not. `ds.dataset` is a MapDataset with all of its methods."""

COLUMN: Mapping[str, str] = {
    name: f"Write `column.values.{name}()`: `values` is an array of NumPy."
    for name in (
        "all",
        "any",
        "argmax",
        "argmin",
        "argsort",
        "astype",
        "cumsum",
        "max",
        "mean",
        "min",
        "std",
        "sum",
        "tolist",
    )
} | {"to_numpy": "Write `column.values`.", "numpy": "Write `column.values`.", "apply": "Write `ds.column(function)`."}
"""Names that a column has not."""

MODULE: Mapping[str, str] = {
    "AUTOTUNE": "Without a number Bushel chooses: `.mp_prefetch()`.",
    "CSVDataSource": "Write `bushel.sources.open('file.csv')`: the records are the lines.",
    "ImageFolder": "Write `bushel.sources.FileDataSource('folder/**/*.jpg')`; `bushel.sources.decode_image` decodes.",
    "IterableDataset": "Write `bushel.IterDataset`.",
    "JSONDataSource": "Write `bushel.sources.open('file.jsonl')`: the records are the lines.",
    "Subset": "Write `ds[a:b]`, or `ds.slice(positions)`.",
    "TensorDataset": "Write `bushel.MapDataset.source(bushel.sources.ArrayDataSource(columns))`.",
    "concatenate_datasets": _JOIN,
    "default_collate": "It is what `ds.batch(n)` does.",
    "from_generator": _FROM_FUNCTION,
    "interleave_datasets": _MIX,
    "load_dataset": "Write `bushel.MapDataset.source(bushel.sources.open(path))` for files. A Dataset of Hugging Face "
    "is a source by itself: `bushel.MapDataset.source(dataset)`.",
    "load_from_disk": "Write `bushel.MapDataset.source(bushel.sources.open(folder))`.",
    "open": "Write `bushel.sources.open(path)`.",
    "prefetch_to_device": "Write `ds.to_device()`.",
    "random_split": _SPLIT,
    "read_csv": "Write `bushel.sources.open('file.csv')`: the records are the lines.",
    "read_parquet": "Write `bushel.sources.open('file.parquet')`.",
    "tqdm": "Write `tqdm.tqdm(iter(ds))`.",
}
"""Names that no module of Bushel has."""


def missing(owner: str, name: str, tables: Iterable[Mapping[str, str]], names: Iterable[str]) -> str:
    """Return the text of an AttributeError: the way out from the first table that has the name, else the nearest name.

    >>> missing("MapDataset", "count", [DATASET], [])
    'A MapDataset has no `count`. Write `len(ds)`.'
    >>> missing("MapDataset", "shufle", [DATASET], ["shuffle", "map"])
    "'MapDataset' object has no attribute 'shufle'. Did you mean `shuffle`?"

    Args:
      owner: the class as users know it.
      name: the name that is missing.
      tables: ways out by name.
      names: the public names that there are.
    """
    if not name.startswith("_"):
        for table in tables:
            if name in table:
                return f"{_article(owner)} {owner} has no `{name}`. {table[name]}"
        if near := nearest(name, names):
            return f"{owner!r} object has no attribute {name!r}. Did you mean `{near}`?"
    return f"{owner!r} object has no attribute {name!r}"


def raise_missing(value: Any, owner: str, name: str, *tables: Mapping[str, str]) -> NoReturn:
    """Return the `__getattr__` of a class.

    If the class has the name, a property has failed, whose error is raised again.
    """
    if any(name in kind.__dict__ for kind in type(value).__mro__):
        object.__getattribute__(value, name)
    raise no_attribute(missing(owner, name, tables, () if name.startswith("_") else dir(value)), name)


def no_attribute(text: str, name: str) -> AttributeError:
    """Return an AttributeError whose text is complete: with its object, Python would add a "Did you mean" of its
    own.
    """
    return AttributeError(text, name=name, obj=None)


def missing_in_module(module: str, name: str, names: Iterable[str]) -> str:
    """Return the text of an AttributeError of a module.

    >>> missing_in_module("bushel", "MapDatset", ["MapDataset"])
    "module 'bushel' has no attribute 'MapDatset'. Did you mean `MapDataset`?"
    """
    text = f"module {module!r} has no attribute {name!r}"
    if name in MODULE:
        return f"{text}. {MODULE[name]}"
    near = None if name.startswith("_") else nearest(name, names)
    return f"{text}. Did you mean `{near}`?" if near else text


def explain_index(index: Any) -> str:
    """Return what to write instead of `ds[index]`, if the index looks like one of another library."""
    if isinstance(index, str):
        return f"Write `ds[0][{index!r}]` for an entry of one element, `ds.map(lambda x: x[{index!r}])` for all."
    if isinstance(index, list) or getattr(index, "ndim", 0):
        return "Write `ds.slice(positions)` for a dataset of several elements, `ds.get(positions)` for the elements."
    return ""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the public name that is most like `name`, if one is."""
    import difflib  # here: a program that has all its names right does not need it

    known = {each.lower(): each for each in names if not each.startswith("_")}
    close = difflib.get_close_matches(name.lower(), list(known), 1, 0.7)
    return known[close[0]] if close else None


def list_names(value: Any) -> list[str]:
    """Return the `__dir__` of a class: without what `Unsupported` stands for."""
    return [name for name in object.__dir__(value) if not name.startswith("__") or hasattr(value, name)]


def show_as(name: str, *, is_pickled: bool = True) -> Callable[[C], C]:
    """Give a private class the name of the public one whose instances it makes, as messages of Python show it.

    The qualified name of the class stays if it is pickled, since pickle looks it up by this name.

    >>> @show_as("MapDataset")
    ... class Pipeline:
    ...     def close(self): ...
    >>> Pipeline() + 1
    Traceback (most recent call last):
    TypeError: unsupported operand type(s) for +: 'MapDataset' and 'int'
    >>> Pipeline().close(1)
    Traceback (most recent call last):
    TypeError: MapDataset.close() takes 1 positional argument but 2 were given
    """

    def rename(kind: C) -> C:
        kind.__name__ = name
        if not is_pickled:
            kind.__qualname__ = name
        for method in vars(kind).values():
            if isinstance(method, types.FunctionType):
                method.__qualname__ = f"{name}.{method.__name__}"
        return kind

    return rename


def _article(owner: str) -> str:
    return "An" if owner[0] in "AEIOaeio" else "A"


class _NoSuchMethod(AttributeError, TypeError):
    """A TypeError for `next(ds)` or `stream[3]`. It is an AttributeError too, so that `hasattr` says False."""

    def __reduce__(self) -> Any:
        return TypeError, self.args


# In a traceback it has the name of the error that Python raises for other classes.
_NoSuchMethod.__name__ = _NoSuchMethod.__qualname__ = "TypeError"
_NoSuchMethod.__module__ = "builtins"


class Unsupported:
    """A special method that a class does not have, such as `__next__`: using it raises a TypeError with the way out.

    >>> class Stream:
    ...     __getitem__ = Unsupported("A stream is read in order: write `next(iter(stream))`.")
    >>> hasattr(Stream(), "__getitem__")
    False
    >>> Stream()[3]
    Traceback (most recent call last):
    TypeError: A stream is read in order: write `next(iter(stream))`.
    """

    def __init__(self, text: str):
        self._text = text

    def __get__(self, value: Any, owner: type | None = None) -> NoReturn:
        raise _NoSuchMethod(self._text)


_NUM_WORKERS = (
    "Workers compute the whole pipeline: write `.mp_prefetch(num_workers={0})` as the last operation of a stream."
)
_IN_READING = "Bushel chooses how far to read ahead. To choose it yourself, see `bushel.ReadOptions`."
_NOT_NEEDED = "Leave it out: Bushel needs no such setting."

ARGUMENTS: Mapping[str, str] = {
    "batch_fn": "Write `batch(n, batch_fn=...)`.",
    "batch_size": "Write `.batch({0})` as an operation of its own.",
    "batched": "Write `vectorized=True` for a function of many elements.",
    "buffer_size": "Leave it out: `shuffle(seed=0)` shuffles all elements, without a buffer.",
    "collate_fn": "Write `batch_fn=...`: a function of a list of elements.",
    "cycle_length": "Write `bushel.experimental.InterleaveIterDataset(streams, cycle_length={0})`.",
    "deterministic": "Leave it out: the order never depends on workers or threads.",
    "device": "Write `.to_device(device)` as the last operation.",
    "drop_last": "Write `drop_remainder={0}`.",
    "fn_kwargs": "Write `functools.partial(function, ...)`.",
    "generator": "Write `seed=0`.",
    "input_columns": "The function gets the whole element: choose entries inside it.",
    "load_from_cache_file": "Write `.cache(folder)` on a stream, where elements should be kept.",
    "num_parallel_calls": _NUM_WORKERS,
    "num_proc": _NUM_WORKERS,
    "num_workers": _NUM_WORKERS,
    "pad_last_batch": 'Write `.to_device(..., remainder="pad")`, or `drop_remainder=True`.',
    "persistent_workers": "Leave it out: workers live as long as their iterator.",
    "pin_memory": "Leave it out: `.to_device()` copies ahead, from mapped memory where there is any.",
    "prefetch_factor": "Write `per_worker_buffer_size={0}` in `bushel.MultiprocessingOptions`.",
    "random_state": "Write `seed={0}`.",
    "remove_columns": "Let the function return only the entries that you want.",
    "reshuffle_each_iteration": "Leave it out: with `.repeat()` every epoch has another order.",
    "rng": "Write `seed=0`.",
    "shuffle": "Write `.shuffle(seed=0)` as an operation of its own.",
    "threads": "Write `bushel.ReadOptions(num_threads={0})` in `to_iter_dataset`.",
    "timeout": "Write `timeout_s={0}` in `bushel.MultiprocessingOptions`.",
    "with_indices": "Write `map_with_index(lambda i, element: ...)`.",
    "workers": _NUM_WORKERS,
    "worker_count": _NUM_WORKERS,
}
"""Arguments of other libraries, and what to write. `{0}` is the value that was given."""


def explains_arguments(way_out: str = "", **arguments: str) -> Callable[[F], F]:
    """Return a decorator: a call whose arguments do not fit raises a TypeError that says what to write instead.

    Args:
      way_out: how a call looks. It is said if there is nothing to say of an argument.
      **arguments: ways out for arguments that the function has not, before those of `ARGUMENTS`.

    >>> @explains_arguments("Write `batch(4)`.")
    ... def batch(size, *, drop_remainder=False): ...
    >>> batch(4, drop_last=True)
    Traceback (most recent call last):
    TypeError: batch has no argument `drop_last`. Write `drop_remainder=True`.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            try:
                return function(*given, **named)
            except TypeError as error:
                trace = error.__traceback__
                if trace is None or trace.tb_next is not None:  # the function has begun: its own error
                    raise
                text = _explain_call(function, named, {**ARGUMENTS, **arguments}, way_out) or str(error)
            raise TypeError(text)

        return call  # type: ignore[return-value]

    return decorate


def renamed_arguments(**names: str) -> Callable[[F], F]:
    """Return a decorator: arguments with an earlier name still work, and a warning says the name of now.

    >>> import warnings
    >>> @renamed_arguments(options="workers")
    ... def save(*, workers=None): return workers
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     save(options=2), str(caught[0].message)
    (2, 'The argument `options` of save is called `workers` now.')
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            for former in names.keys() & named.keys():
                name = names[former]
                if name in named:
                    raise TypeError(f"`{former}` and `{name}` of {function.__name__} are one argument. Give `{name}`.")
                text = f"The argument `{former}` of {function.__name__} is called `{name}` now."
                warnings.warn(text, BushelDeprecationWarning, stacklevel=2)
                named[name] = named.pop(former)
            return function(*given, **named)

        return call  # type: ignore[return-value]

    return decorate


def explains_creation(way_out: str = "", **arguments: str) -> Callable[[C], C]:
    """Return the same as `explains_arguments` for the creation of a class, such as a dataclass of options."""

    def decorate(kind: C) -> C:
        kind.__init__ = explains_arguments(way_out, **arguments)(kind.__init__)
        return kind

    return decorate


def _explain_call(
    function: Callable[..., Any], named: Mapping[str, Any], ways_out: Mapping[str, str], way_out: str
) -> str | None:
    """Return the text of a TypeError for a call that does not fit a function; None if there is nothing to add to
    Python's.
    """
    owner, _, method = function.__qualname__.rpartition(".")
    owner = owner.removesuffix("Meta").lstrip("_") if owner.endswith("Meta") else owner  # a function of the class
    name = owner if method == "__init__" else f"{owner}.{method}".lstrip(".")
    parameters = inspect.signature(function).parameters
    unknown = [each for each in named if each not in parameters]
    if not unknown:
        missing_names = [
            each.name
            for each in parameters.values()
            if each.default is each.empty and each.kind is each.KEYWORD_ONLY and each.name not in named
        ]
        lacks = f" It needs `{'` and `'.join(missing_names)}`." if missing_names else ""
        return f"This is not how {name} is called.{lacks} {way_out}" if way_out else None
    said = []
    for each in unknown:
        said.append(f"{name} has no argument `{each}`.")
        if each in ways_out:
            said.append(ways_out[each].format(repr(named[each])))
        elif near := nearest(each, parameters):
            said.append(f"Did you mean `{near}`?")
        elif way_out:
            said.append(way_out)
        else:
            said.append(f"It has {', '.join(f'`{known}`' for known in parameters if known != 'self')}.")
    return " ".join(dict.fromkeys(said))
