"""What newcomers write in their first hour, and what Bushel says to it: each sentence names the way out.

docs/errors.md shows the same table. `python tests/test_newcomer_mistakes.py` writes it there again.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bushel
from bushel import jit, sources, trajectory
from bushel._src.cli import main as run_command

PAGE = Path(__file__).parent.parent / "docs" / "errors.md"
BEGIN, END = "<!-- mistakes: begin -->\n", "<!-- mistakes: end -->\n"

SCRIPT = """\
import bushel

train = bushel.MapDataset.range(10).repeat()


def make_dataset():
    return train
"""

FUNCTIONS = """\
import threading

lock = threading.Lock()


def count(x):
    with lock:
        return x + 1


def double(x):
    x * 2
"""

# (What is written, what Bushel says.) `ds` is a MapDataset, `stream` an IterDataset, `it` an iterator, `loader` a
# loader of bushel.jit, `robot` a TrajectoryDataset. "folder" stands for a folder with files.
MISTAKES: dict[str, list[tuple[str, str]]] = {
    "From PyTorch": [
        (
            "bushel.DataLoader(ds, batch_size=4)",
            "DataLoader has no argument `batch_size`. Write `operations=[bushel.Batch(4)]`, or "
            "`bushel.load(source, batch_size=4)`.",
        ),
        (
            "bushel.DataLoader(data_source=ds, batch_size=4, shuffle=True)",
            "DataLoader has no argument `batch_size`. Write `operations=[bushel.Batch(4)]`, or "
            "`bushel.load(source, batch_size=4)`. DataLoader has no argument `shuffle`. Write "
            "`sampler=bushel.IndexSampler(len(source), shuffle=True, seed=0)`, or `bushel.load(source, "
            "shuffle=True, seed=0)`.",
        ),
        (
            "bushel.DataLoader([1, 2, 3])",
            "This is not how DataLoader is called. It needs `data_source` and `sampler`. Write "
            "`bushel.load(source, batch_size=4)`, or `bushel.DataLoader(data_source=source, "
            "sampler=bushel.IndexSampler(len(source)), operations=[bushel.Batch(4)])`.",
        ),
        (
            "bushel.load(ds, batch_size=4, num_workers=4)",
            "load has no argument `num_workers`. Write `worker_count=4`.",
        ),
        (
            "next(bushel.DataLoader(data_source=ds, sampler=bushel.IndexSampler(10)))",
            "A DataLoader is not an iterator. Write `it = iter(loader)` once, then `next(it)` for each element.",
        ),
        (
            "bushel.MapDataset([1, 2, 3])",
            "MapDataset is abstract. Write `bushel.MapDataset.source(records)` for a MapDataset of records, or a "
            "subclass with `__getitem__` and `__len__` for one of your own.",
        ),
        (
            "bushel.IterableDataset",
            "module 'bushel' has no attribute 'IterableDataset'. Write `bushel.IterDataset`.",
        ),
        (
            "bushel.random_split",
            "module 'bushel' has no attribute 'random_split'. Write `train, validation = "
            "ds.split([0.9, 0.1])` on a MapDataset.",
        ),
        (
            "ds.batch(4, drop_last=True)",
            "MapDataset.batch has no argument `drop_last`. Write `drop_remainder=True`.",
        ),
        (
            "ds.batch(4, collate_fn=list)",
            "MapDataset.batch has no argument `collate_fn`. Write `batch_fn=...`: a function of a list of elements.",
        ),
        (
            "ds.map(str, num_workers=4)",
            "MapDataset.map has no argument `num_workers`. Workers compute the whole pipeline: write "
            "`.mp_prefetch(num_workers=4)` as the last operation of a stream.",
        ),
        (
            "stream.mp_prefetch(workers=4)",
            "IterDataset.mp_prefetch has no argument `workers`. Write `stream.mp_prefetch(4)`.",
        ),
        (
            "bushel.MultiprocessingOptions(workers=4)",
            "MultiprocessingOptions has no argument `workers`. Write `num_workers=4`.",
        ),
        (
            "bushel.ReadOptions(num_workers=4)",
            "ReadOptions has no argument `num_workers`. It is about threads: write `num_threads=4`, or "
            "`MultiprocessingOptions(num_workers=4)`.",
        ),
        (
            "next(ds)",
            "A dataset is not an iterator. Write `it = iter(ds)` once, then `next(it)` for each element.",
        ),
        (
            "stream[3]",
            "A stream is read in order, so it has no `stream[i]`. Write `ds[i]` on the MapDataset before "
            "`to_iter_dataset()`, or take the first elements: `list(stream.take(n))`.",
        ),
        (
            'ds["image"]',
            "index must be an integer, got 'image' of type str. Write `ds[0]['image']` for an entry of one "
            "element, `ds.map(lambda x: x['image'])` for all.",
        ),
        (
            "ds[[1, 2, 3]]",
            "index must be an integer, got [1, 2, 3] of type list. Write `ds.slice(positions)` for a dataset of "
            "several elements, `ds.get(positions)` for the elements.",
        ),
        (
            "ds.shuffle(True)",
            "Seed must be an integer, got True of type bool. Write `ds.shuffle(seed=0)`.",
        ),
        (
            "ds.set_epoch(3)",
            "A MapDataset has no `set_epoch`. `ds.shuffle(seed=0).repeat()` has another order in every epoch by "
            "itself.",
        ),
        (
            "bushel.load(ds, batch_size=4, shuffle=True)",
            "Shuffling requires a seed. Write `shuffle=True, seed=0`.",
        ),
        (
            "ds.state_dict()",
            "A MapDataset has no `state_dict`. An iterator has the position: `it = iter(ds)`, then `it.get_state()`.",
        ),
        (
            "it.load_state_dict({})",
            "A DatasetIterator has no `load_state_dict`. Write `it.set_state(state)`.",
        ),
        (
            'ds.to("cuda")',
            "A MapDataset has no `to`. Write `ds.to_device()` as the last operation, for arrays of JAX on an "
            "accelerator.",
        ),
    ],
    "From tf.data": [
        (
            "ds.take([1, 2])",
            "take takes a number, got [1, 2]. Write `ds.get(indices)` for the elements at indices.",
        ),
        (
            "ds.get(3)",
            "get needs a list of integers, got 3. The first 3 elements are `ds.take(3)`.",
        ),
        (
            "ds.enumerate()",
            "A MapDataset has no `enumerate`. Write `.map_with_index(lambda i, element: (i, element))`.",
        ),
        (
            "ds.unbatch()",
            "A MapDataset has no `unbatch`, an IterDataset has: write `ds.to_iter_dataset().unbatch(...)`. Or leave "
            "out the `batch` before it.",
        ),
        (
            "ds.shuffle(buffer_size=1000)",
            "MapDataset.shuffle has no argument `buffer_size`. Leave it out: `shuffle(seed=0)` shuffles all "
            "elements, without a buffer.",
        ),
        (
            "stream.shuffle(1000)",
            "An IterDataset has no `shuffle`, a MapDataset has: call it before `to_iter_dataset()`. To shuffle "
            "within windows of a stream, use `window_shuffle`.",
        ),
        (
            "ds.map(str, num_parallel_calls=4)",
            "MapDataset.map has no argument `num_parallel_calls`. Workers compute the whole pipeline: write "
            "`.mp_prefetch(num_workers=4)` as the last operation of a stream.",
        ),
        (
            "ds.prefetch(2)",
            "A MapDataset has no `prefetch`, an IterDataset has: write `ds.to_iter_dataset().prefetch(...)`.",
        ),
        (
            "ds.cache()",
            "A MapDataset has no `cache`, an IterDataset has: write `ds.to_iter_dataset().cache(...)`.",
        ),
        (
            "ds.padded_batch(4)",
            "A MapDataset has no `padded_batch`. Write `.batch(n, batch_fn=...)` with a function that pads, or "
            "`ds.bucket(lengths, boundaries, n)` on a MapDataset.",
        ),
        (
            "ds.interleave(str)",
            "A MapDataset has no `interleave`. Write `bushel.experimental.InterleaveIterDataset(streams, "
            "cycle_length=4)`.",
        ),
        (
            "ds.cardinality()",
            "A MapDataset has no `cardinality`. Write `len(ds)`.",
        ),
        (
            "ds.shape",
            "A MapDataset has no `shape`. `ds.describe()` shows the shapes and dtypes of the elements.",
        ),
        (
            "ds.as_numpy_iterator()",
            "A MapDataset has no `as_numpy_iterator`. Elements are NumPy arrays already: `it = iter(ds)`.",
        ),
        (
            "bushel.MapDataset.from_tensor_slices(np.arange(3))",
            "A MapDataset has no `from_tensor_slices`. Write `bushel.MapDataset.source(array)`; for several arrays "
            "`bushel.MapDataset.source(bushel.sources.ArrayDataSource(columns))`.",
        ),
        (
            "bushel.IterDataset.from_generator(double)",
            "An IterDataset has no `from_generator`. Write `bushel.IterDataset.source(function)`: "
            "the function returns an iterator.",
        ),
        (
            "stream.repeat().cache()",
            "repeat() has no end, so it cannot be kept. Call `cache` before `repeat`.",
        ),
    ],
    "From Hugging Face datasets": [
        (
            'bushel.load_dataset("imdb")',
            "module 'bushel' has no attribute 'load_dataset'. Write "
            "`bushel.MapDataset.source(bushel.sources.open(path))` for files. A Dataset of Hugging Face is a "
            "source by itself: `bushel.MapDataset.source(dataset)`.",
        ),
        (
            'sources.open("imdb")',
            "imdb does not exist here. For a data set of the Hugging Face Hub, write "
            '`bushel.MapDataset.source(datasets.load_dataset("imdb", split="train"))`, or open the folder that '
            '`huggingface_hub.snapshot_download("imdb", repo_type="dataset")` returns.',
        ),
        (
            "ds.train_test_split(0.1)",
            "A MapDataset has no `train_test_split`. Write `train, validation = ds.split([0.9, 0.1])` on a MapDataset.",
        ),
        (
            'ds.with_format("jax")',
            "A MapDataset has no `with_format`. Elements are NumPy arrays already. Write `ds.to_device()` as the "
            "last operation, for arrays of JAX on an accelerator.",
        ),
        (
            "ds.map(str, batched=True)",
            "MapDataset.map has no argument `batched`. Write `vectorized=True` for a function of many elements.",
        ),
        (
            "ds.select([1, 2])",
            "A MapDataset has no `select`. Write `ds.slice(positions)` for some of the elements, or `ds.map(...)` "
            "for some of their entries.",
        ),
        (
            'ds.remove_columns("text")',
            "A MapDataset has no `remove_columns`. Write `ds.map(...)` with a function that returns the dict you want.",
        ),
        (
            "ds.column_names",
            "A MapDataset has no `column_names`. `ds.describe()` shows the shapes and dtypes of the elements.",
        ),
        (
            "ds.shard(num_shards=4, index=0)",
            "A MapDataset has no `shard`. Write `ds[index::count]` on a MapDataset: shard `index` of `count`.",
        ),
        (
            'ds.sort("length")',
            "A MapDataset has no `sort`. Write `ds.order_by(lambda element: ...)` on a MapDataset.",
        ),
    ],
    "From Grain": [
        (
            "ds.shuffle()",
            "`shuffle` requires a seed. Please provide it with `ds.seed(seed)` or `shuffle(seed=...)`.",
        ),
        (
            "ds.random_map(lambda x, rng: x)",
            "`random_map` requires a seed. Please either provide it with `ds.seed(seed)` before any random "
            "transformations or pass it directly with `ds.random_map(transform, seed=seed)`.",
        ),
        (
            "ds.random_map(lambda x: x, seed=0)",
            "`random_map` calls `function(element, rng)`, but <lambda> takes (x). `map` gives the element alone.",
        ),
        (
            "ds.map(lambda i, x: x)",
            "`map` calls `function(element)`, but <lambda> takes (i, x). `map_with_index` also gives the index, "
            "`random_map` a random generator.",
        ),
        (
            "ds.map(double)",
            "map(double @ functions.py:11): your function returns None for every element, since it has no `return` "
            "with a value: forgot `return`?",
        ),
        (
            'list(ds.map(lambda x: print("", end="")))',
            "map(<lambda> @ <string>:1): your function returned None for the first 8 elements: forgot `return`? An "
            "element that is None is left out.",
        ),
        (
            "ds.filter(lambda x: x > 3).batch(2)",
            "`MapDataset.batch` can not follow `MapDataset.filter` because it can discard elements. Convert "
            "`MapDataset` to `IterDataset` with `to_iter_dataset()` before calling `batch`.",
        ),
        (
            "list(bushel.MapDataset.source([1, None, 3]).batch(2))",
            "Expected all input elements to have the same structure but got:\n  1 x int\n  1 x None\n(some "
            "elements are None; filter them out before batching: `.filter(lambda x: x is not None)` on a stream)",
        ),
        (
            "list(bushel.MapDataset.source([np.zeros(2), np.zeros(3)]).batch(2))",
            "Expected all input elements to have the same structure but got:\n  1 x float64[2]\n  1 x "
            "float64[3]\n(first axes of different lengths: pad them in `map`, or with `batch_fn=...`)",
        ),
        (
            "bushel.MapDataset.mix(ds, ds)",
            "mix takes a list of datasets: write `MapDataset.mix([a, b])`.",
        ),
        (
            "bushel.MapDataset.concatenate(ds, ds)",
            "This is not how MapDataset.concatenate is called. Write `MapDataset.concatenate([a, b])`.",
        ),
        (
            "bushel.MapDataset.mix([ds, stream])",
            "mix takes MapDatasets, got an IterDataset. Call `to_iter_dataset()` after it, or use the functions of "
            "IterDataset for streams.",
        ),
        (
            'stream.with_options(on_eror="skip")',
            "DatasetOptions has no argument `on_eror`. Did you mean `on_error`?",
        ),
        (
            "ds.apply(lambda x: x)",
            "Transformation type: <lambda> is not supported. For a function write `ds.map(function)`.",
        ),
        (
            "len(stream.filter(bool))",
            "The length of this IterDataset is not known without reading it: "
            "MapDataset.range(10).to_iter_dataset().filter(bool) may drop elements, or is read until it ends. On a "
            "MapDataset, `where` and `pack` return datasets with a length.",
        ),
        (
            "len(stream.repeat())",
            "This IterDataset has no end: MapDataset.range(10).to_iter_dataset().repeat(). Its first elements are "
            "`.take(n)`.",
        ),
        (
            "list(stream.map(count).mp_prefetch(bushel.MultiprocessingOptions(num_workers=1)))",
            "map(count) cannot be sent to worker processes: the variable `lock`, which count reads in line 7 of "
            "functions.py, is a lock. Make it inside the function when the function first needs it, or in "
            "`worker_init_fn` of `mp_prefetch`. (cannot pickle '_thread.lock' object)",
        ),
        (
            "it.set_state(iter(ds.map(str)).get_state())",
            "This state belongs to another pipeline. What differs (- in the state, + here, ~ in both):\n  - "
            "map(str)\nPass check=False to set_state to restore it anyway.",
        ),
        (
            "it.map(str)",
            "A DatasetIterator has no `map`. A dataset has it: write `ds.map(...)` before `iter(ds)`.",
        ),
        (
            "it[3]",
            "An iterator has no `it[i]`. Write `ds[i]` on the MapDataset, or `next(it)` for the next element.",
        ),
        (
            "closed = iter(ds); closed.close(); next(closed)",
            "Trying to advance a closed iterator: DatasetIterator. Write `it = iter(ds)` for a new one.",
        ),
        (
            "ds.suffle(seed=0)",
            "'MapDataset' object has no attribute 'suffle'. Did you mean `shuffle`?",
        ),
    ],
    "Sources": [
        (
            "bushel.MapDataset.source(x for x in range(3))",
            "A source needs `__len__` and `__getitem__`, got generator. Write "
            "`bushel.IterDataset.source(function)` for a function that returns a generator, or "
            "`list(...)` of it if the records fit into memory.",
        ),
        (
            'bushel.MapDataset.source({"x": np.zeros(3)})',
            "A source is read by position from 0 on, but this dict has the keys 'x'. Pass one of its values, or, "
            "for columns of arrays, bushel.sources.ArrayDataSource(...).",
        ),
        (
            'bushel.MapDataset.source("folder/a.txt")',
            "A source holds records, but 'folder/a.txt' is a str. If it names files, open them: "
            "`bushel.MapDataset.source(bushel.sources.open(path))`. If its characters are the records, pass "
            "list(text).",
        ),
        (
            "bushel.MapDataset.source(stream)",
            "A source needs `__len__` and `__getitem__`, got IterDataset. It is a dataset already: use it without "
            "`source`.",
        ),
        (
            'sources.ParquetDataSource("folder/parquet")',
            "folder/parquet is a folder, not a file. Name the files in it, for example folder/parquet/*.",
        ),
        (
            'sources.open("folder/empty")',
            "folder/empty has no files. Name a file, or a pattern such as 'data/*.tfrecord*'.",
        ),
        (
            'sources.ImageFolder("folder/images")',
            "module 'bushel.sources' has no attribute 'ImageFolder'. Write "
            "`bushel.sources.FileDataSource('folder/**/*.jpg')`; `bushel.sources.decode_image` decodes.",
        ),
        (
            'ds.save("folder/new", format="csv")',
            'format must be "bag", "array_record", "bagz", "tfrecord", "parquet" or "rlds", got \'csv\'.',
        ),
        (
            'ds.repeat().save("folder/new", format="bagz")',
            "An endless dataset cannot be saved: leave out `repeat()`, or take a part with `take(count)`.",
        ),
    ],
    "Columns": [
        (
            "ds.where(lambda x, y: x > 3)",
            "`where` calls `function(element)`, but <lambda> takes (x, y).",
        ),
        (
            'ds.where("label")',
            "`where` takes a function or a column, not the name of an entry: write `ds.where(lambda element: "
            "element['label'])`.",
        ),
        (
            "ds.where([True, False])",
            "`where` needs a function, a column, or one value for each of the 10 elements of range(10); got bool[2].",
        ),
        (
            "ds.filter(ds.column(lambda x: x > 3))",
            "`filter` takes a function or a Filter transformation, got Column(10 x bool) of type Column. For a "
            "column, or one bool for each element, write `where(...)`.",
        ),
        (
            'ds.column("label")',
            "`column` takes a function or a Map transformation, got 'label' of type str. Write `column(lambda "
            "element: element['label'])`.",
        ),
        (
            'ds.order_by("label")',
            "`order_by` takes a function or a column, not the name of an entry: write `ds.order_by(lambda element: "
            "element['label'])`.",
        ),
        (
            "ds.pack(float, 128)",
            "`pack` takes one whole number per element as its length; got values of float64.",
        ),
        (
            "ds.column(float).mean()",
            "A Column has no `mean`. Write `column.values.mean()`: `values` is an array of NumPy.",
        ),
        (
            "ds.repeat().batch(2).column(len)",
            "batch(2) has no end, so it has no column. Call `column` before `repeat`.",
        ),
    ],
    "On devices and in jax.jit": [
        (
            'next(iter(ds.batch(2).to_device("gpu")))',
            "to_device takes a device, a Sharding, or a tree of them that has the structure of an element; got "
            "'gpu'. For one device write jax.devices()[0].",
        ),
        (
            "iter(loader)",
            "A loader of bushel.jit has no position of its own. Write `for batch, mask in "
            "loader.iterate(loader.init_state(0)): ...` in Python, or `loader.scan_epoch(state, carry, body)` for "
            "a whole epoch in one compiled loop.",
        ),
        (
            "next(loader)",
            "A loader of bushel.jit has no position of its own. Write `for batch, mask in "
            "loader.iterate(loader.init_state(0)): ...` in Python, or `loader.scan_epoch(state, carry, body)` for "
            "a whole epoch in one compiled loop.",
        ),
        (
            "loader[0]",
            "Write `batch, mask = loader.batch_at(step, seed)` for a batch by its number.",
        ),
        (
            "jit.DataLoader(jit.ArraySource(np.arange(8)), batch_size=4)",
            "DataLoader has no argument `batch_size`. Write `DataLoader([source, BatchTransform(4)])`.",
        ),
        (
            "jit.DataLoader(jit.ArraySource(np.arange(8)), [jit.BatchTransform(4)])",
            "batch_transform must be a function of a batch, got [BatchTransform(batch_size=4, remainder='pad', "
            "element_spec_override=None)]. Write `DataLoader([source, BatchTransform(4)])`.",
        ),
        (
            "jit.DataLoader([ds.batch(4)])",
            "A pipeline must begin with a source, such as `ArraySource(arrays)`, got MapDataset.range(10).batch(4).",
        ),
        (
            "jit.ArraySource(ds)",
            "A source takes a tree of arrays, got MapDataset. Write `np.array(...)` for numbers in a list, and "
            "`ds.batch(len(ds))[0]` for the elements of a MapDataset.",
        ),
        (
            "jit.ArraySource(np.arange(8), shuffle=True)",
            'ArraySource has no argument `shuffle`. Write `ordering="shuffle"` or `ordering="sequential"`.',
        ),
    ],
    "Robot data": [
        (
            'trajectory.LeRobotSource("lerobot/pusht")',
            "There is no LeRobot data set: lerobot/pusht holds no meta/info.json. To get a data set of the Hugging "
            'Face Hub, write `huggingface_hub.snapshot_download("lerobot/pusht", repo_type="dataset")`: it returns '
            "the folder.",
        ),
        (
            'trajectory.open_episodes("bridge")',
            "This is not how open_episodes is called. Write `open_episodes(name, data_dir)`: the data set `name` "
            "in the folder `data_dir`.",
        ),
        (
            "robot.mp_prefetch()",
            "A TrajectoryDataset has no `mp_prefetch`. Write `ds.iterator(workers=4)`.",
        ),
        (
            "robot.map(str)",
            "A TrajectoryDataset has no `map`. Write `ds.traj_map(function)` for whole trajectories, or "
            "`ds.frame_map(function)` for frames.",
        ),
        (
            "robot.to_iter_dataset()",
            "A TrajectoryDataset has no `to_iter_dataset`. Write `ds.dataset.to_iter_dataset()`, or "
            "`ds.iterator(workers=4)`.",
        ),
        (
            "robot.origin(0)",
            "A TrajectoryDataset has no `origin`. Write `ds.dataset.origin(index)`.",
        ),
        (
            "robot.batch(2)",
            "Trajectories differ in length and cannot be stacked: call flatten() before batch().",
        ),
        (
            "robot.iterator(num_workers=4)",
            "TrajectoryDataset.iterator has no argument `num_workers`. Write `workers=4`.",
        ),
    ],
    "Checkpoints, the viewer and the command line": [
        (
            'bushel.OrbaxCheckpointHandler().save("folder/new", ds)',
            "CheckpointHandler takes an iterator with get_state and set_state, got MapDataset.range(10). Of a "
            "dataset, save `it = iter(ds)`.",
        ),
        (
            "bushel.view(5)",
            "A dataset, a loader or a source is needed, got int. Name one, or a function without arguments that "
            "returns one.",
        ),
        (
            'bushel.view("folder/empty")',
            "folder/empty has no files. Name a file, or a pattern such as 'data/*.tfrecord*'.",
        ),
        (
            'command("stats", "folder/train.py:make_dataset")',
            "bushel: Statistics of an endless data set cannot be computed. Look at its first elements: `--limit "
            "1000` (in Python `limit=1000`), or leave out `repeat()`.",
        ),
        (
            'command("stats", "folder/train.py:make_datset")',
            "bushel: folder/train.py has no 'make_datset'. Did you mean 'make_dataset'?",
        ),
        (
            'command("view")',
            "bushel: Name a target, or a running program with --attach.",
        ),
        (
            'command("inspect", "imdb")',
            "bushel: imdb does not exist. Name a file, a folder, a pattern such as 'data/*.parquet', or a dataset "
            "in a script: train.py:make_dataset.",
        ),
        (
            'command("convert", "folder/a.txt", "folder/a.xyz")',
            "bushel: folder/a.xyz cannot be written: its name should end in one of .array_record, .tfrecord, .bag, "
            ".bagz, .parquet.",
        ),
    ],
}


class _Said(logging.Handler):
    """Keeps what the logger says."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _make_files(folder: Path) -> None:
    for name in ("images/cat", "parquet", "empty"):
        (folder / name).mkdir(parents=True)
    (folder / "images" / "cat" / "1.jpg").write_bytes(b"")
    (folder / "parquet" / "1.parquet").write_bytes(b"")
    (folder / "a.txt").write_text("a\nb\n")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "functions.py").write_text(FUNCTIONS)


def _make_names(folder: Path) -> dict[str, Any]:
    def command(*arguments: str) -> None:
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            assert run_command([argument.replace("folder/", f"{folder}/") for argument in arguments]) == 1
        raise SystemExit(said.getvalue().strip())

    names: dict[str, Any] = {"bushel": bushel, "jit": jit, "np": np, "sources": sources, "trajectory": trajectory}
    code = (folder / "functions.py").read_text()
    exec(compile(code, str(folder / "functions.py"), "exec"), names)
    ds = bushel.MapDataset.range(10)
    loader = jit.DataLoader([jit.ArraySource({"x": np.arange(8)}), jit.BatchTransform(4)])
    robot = trajectory.TrajectoryDataset.from_trajectories([{"action": np.zeros((3, 2))}])
    return names | {
        "ds": ds,
        "stream": ds.to_iter_dataset(),
        "it": iter(ds),
        "loader": loader,
        "robot": robot,
        "command": command,
    }


def _find_answer(code: str, folder: Path, names: dict[str, Any]) -> str:
    """What Bushel says to a line of code: the error, or else the warning."""
    said = _Said()
    logger = logging.getLogger("bushel")
    logger.addHandler(said)
    try:
        exec(code.replace('"folder', f'"{folder}'), dict(names))
        text = "\n".join(said.texts)
    except (Exception, SystemExit) as error:
        assert not (type(error).__name__.startswith("_") and not isinstance(error, SystemExit))
        text = str(error)
    finally:
        logger.removeHandler(said)
    text = text.replace(str(folder), "folder").replace(str(folder.name), "folder")
    return re.sub(r"@ \S*functions.py", "@ functions.py", text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("newcomer")
    _make_files(path)
    return path


@pytest.fixture(scope="module")
def names(folder):
    return _make_names(folder)


ALL = [(code, sentence) for entries in MISTAKES.values() for code, sentence in entries]


@pytest.mark.parametrize(("code", "sentence"), ALL, ids=[code for code, _ in ALL])
def test_a_mistake_gets_its_sentence(code, sentence, folder, names):
    assert _find_answer(code, folder, names) == sentence


def test_there_are_many_newcomer_mistakes():
    assert len(ALL) >= 70 and len(dict(ALL)) == len(ALL)


PRIVATE = re.compile(r"Pipeline(Iterator)?\b|_[A-Z]\w+|Meta\b|\b(Map|Iter)Pipeline")


@pytest.mark.parametrize("sentence", [sentence for _, sentence in ALL])
def test_no_sentence_has_a_private_name(sentence):
    assert not PRIVATE.search(sentence)


@pytest.mark.parametrize("sentence", [sentence for _, sentence in ALL])
def test_each_sentence_has_a_way_out(sentence):
    assert re.search(
        r"`|Did you mean|[Nn]ame |[Pp]ass |[Ww]rite |one of | must be \"|[Cc]all |For one device", sentence
    )


def _make_table() -> str:
    lines = []
    for title, entries in MISTAKES.items():
        lines += [f"\n### {title}\n", "| you write | Bushel says |", "| --- | --- |"]
        for code, sentence in entries:
            said = " ".join(sentence.split()).replace("|", "\\|")
            lines.append(f"| `{code}` | {said} |")
    return "\n".join(lines) + "\n"


def test_the_page_has_this_table():
    text = PAGE.read_text()
    assert text.partition(BEGIN)[2].partition(END)[0] == _make_table(), "run python tests/test_newcomer_mistakes.py"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + _make_table() + END + rest.partition(END)[2])
