"""How each library runs the works of peer_works.py, in the fastest form that its documentation shows.

A function `prepare_...` gets a work and returns a function that opens one epoch, an iterable of batches. For W3, where
workers take long to start, the iterable is endless, but for Ray Data. A library is imported where it is needed, since
each runs in a process of its own.
"""

from __future__ import annotations

import atexit
import importlib
import itertools
import os
import pickle
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_works import (
    HORIZON,
    ROW,
    Batch,
    Images,
    Photos,
    Record,
    Small,
    Tokens,
    Trajectories,
    Work,
    group,
    make_window,
    pack,
    stack,
)

Epoch = Callable[[], Iterable[Batch]]
WORKERS = 2
SHUFFLED = 1_000  # elements in the buffer of a library that shuffles in one
LONG = 1_000  # epochs of W3: more than a run takes


def prepare_bushel(work: Work) -> Epoch:
    bushel = importlib.import_module("bushel")
    source: Any = work.records
    if isinstance(work, Images):
        source = bushel.sources.ArrayDataSource(work.arrays)
    elif isinstance(work, Tokens):
        offsets = np.concatenate([[0], np.cumsum(work.lengths)])
        source = bushel.sources.RaggedDataSource({"tokens": work.flat}, offsets)
    return prepare_grain_form(bushel, work, source)


def prepare_grain(work: Work) -> Epoch:
    grain = importlib.import_module("grain")
    flags: Any = importlib.import_module("absl.flags").FLAGS
    if not flags.is_parsed():  # Grain's workers need parsed flags
        flags.mark_as_parsed()
    return prepare_grain_form(grain, work, work.records)


def prepare_grain_form(library: Any, work: Work, source: Any) -> Epoch:
    """Bushel and Grain have one API. Neither uses threads here: with Grain's 16, such works are ten times slower."""
    inline = library.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    seeds = itertools.count()  # every epoch has an order of its own, as `repeat` would give it

    def open_epoch() -> Any:
        dataset = library.MapDataset.source(source).seed(next(seeds))
        if not isinstance(work, Small):
            dataset = dataset.shuffle()
        for function in work.maps:
            dataset = dataset.map(function)
        if isinstance(work, Photos):
            stream = dataset.batch(work.batch).repeat().to_iter_dataset(inline)
            return stream.mp_prefetch(library.MultiprocessingOptions(num_workers=WORKERS))
        if isinstance(work, Small):
            return dataset.filter(work.keep).to_iter_dataset(inline).batch(work.batch)
        if isinstance(work, Tokens):
            packer = library.experimental.ConcatThenSplitIterDataset
            return packer(dataset.to_iter_dataset(inline), length_struct={"tokens": ROW}).batch(work.batch)
        batches = dataset.batch(work.batch)
        return (batches.map(work.finish) if work.name == "w1a" else batches).to_iter_dataset(inline)

    return open_epoch


def prepare_torch(work: Work) -> Epoch:
    data = importlib.import_module("torch.utils.data")
    if work.name == "w1a":  # "loading from bulk reads": the sampler gives the indices of a whole batch
        assert isinstance(work, Images)
        sampler = data.BatchSampler(data.RandomSampler(work.records), work.batch, False)
        options = {"sampler": sampler, "batch_size": None, "collate_fn": work.finish}
        return lambda: data.DataLoader(work.records, **options)
    if isinstance(work, (Small, Tokens)):

        class Stream(data.IterableDataset):
            def __iter__(self) -> Iterator[Record]:
                if isinstance(work, Tokens):
                    return pack(map(work.make, np.random.default_rng(0).permutation(len(work)).tolist()))
                return filter(work.keep, map(work.make, range(len(work))))

        return lambda: data.DataLoader(Stream(), work.batch, collate_fn=stack)
    return prepare_torch_loader(work, Made(work))


class Made:
    """The records of a work after its maps, in the form that torch calls a map-style data set."""

    def __init__(self, work: Work):
        self.work = work

    def __len__(self) -> int:
        return len(self.work)

    def __getitem__(self, index: int) -> Record:
        return self.work.make(index)


def prepare_torch_loader(work: Work, dataset: Any) -> Epoch:
    """Torch's loader over a data set with random access, with workers for W3."""
    data = importlib.import_module("torch.utils.data")
    if isinstance(work, Photos):
        sampler = data.RandomSampler(dataset, num_samples=LONG * len(work))
        options = {"collate_fn": stack, "num_workers": WORKERS, "persistent_workers": True}
        return lambda: data.DataLoader(dataset, work.batch, sampler=sampler, **options)
    return lambda: data.DataLoader(dataset, work.batch, shuffle=True, collate_fn=stack)


def prepare_spdl(work: Work) -> Epoch:
    pipelines = importlib.import_module("spdl.pipeline")
    many = WORKERS if isinstance(work, Photos) else 1  # threads wait for each other where Python does the work

    def make(indices: Any) -> Batch:
        return stack([work.make(index) for index in indices])

    def gather(indices: Any) -> Batch:
        records: Any = work.records
        return work.finish(records[indices])

    def open_epoch() -> Iterator[Batch]:
        order = np.random.default_rng(0).permutation(len(work))
        builder = pipelines.PipelineBuilder()
        if isinstance(work, Small):
            records = filter(work.keep, map(work.make, range(len(work))))
            builder = builder.add_source(group(records, work.batch)).pipe(stack)
        elif isinstance(work, Tokens):
            rows = pack(map(work.make, order.tolist()))
            builder = builder.add_source(group(rows, work.batch)).pipe(stack)
        elif work.name == "w1a":
            builder = builder.add_source(np.array_split(order, range(work.batch, len(order), work.batch))).pipe(gather)
        else:
            turns = itertools.repeat(order, LONG if isinstance(work, Photos) else 1)
            chunks = itertools.chain.from_iterable(split(turn, work.batch) for turn in turns)
            builder = builder.add_source(chunks).pipe(make, concurrency=many)
        pipeline = builder.add_sink(4).build(num_threads=many)
        with pipeline.auto_stop():
            yield from pipeline

    return open_epoch


def split(order: np.ndarray, size: int) -> Iterator[list[int]]:
    """The indices of each batch."""
    return (order[low : low + size].tolist() for low in range(0, len(order), size))


def prepare_ray(work: Work) -> Epoch:
    """Records lie in Ray's object store, where workers read them without a copy. The pipeline carries indices."""
    ray = importlib.import_module("ray")
    data = importlib.import_module("ray.data")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="error")
    data.DataContext.get_current().enable_progress_bars = False
    if isinstance(work, Small):
        records: Any = data.from_items(list(work.records), override_num_blocks=2 * WORKERS)
        for function in work.maps:
            records = records.map(function)
        records = records.filter(work.keep)
        return lambda: records.iter_batches(batch_size=work.batch)
    held = ray.put(work)
    order = np.random.default_rng(0).permutation(len(work))

    def make(batch: Batch) -> Batch:
        here = ray.get(held)
        if here.name == "w1a":
            return here.finish(here.records[batch["data"]])
        made = map(here.make, batch["data"].tolist())
        return stack(list(pack(made) if here.name == "w4" else made))

    size = SHUFFLED if isinstance(work, Tokens) else work.batch
    batches = data.from_numpy(np.array_split(order, 2 * WORKERS)).map_batches(
        make, batch_size=size, zero_copy_batch=True
    )
    return lambda: batches.iter_batches(batch_size=work.batch)


def prepare_datasets(work: Work) -> Epoch:
    datasets = importlib.import_module("datasets")
    datasets.disable_progress_bars()
    if isinstance(work, Images):
        features = datasets.Features({"image": datasets.Array2D((28, 28), "uint8"), "label": datasets.Value("int64")})
        table = datasets.Dataset.from_dict(dict(work.arrays), features).with_format("numpy")
        shuffled = table.shuffle(seed=0)
        if work.name == "w1a":
            return lambda: map(work.finish, shuffled.iter(work.batch))
        return lambda: (stack([*map(work.maps[0], rows_of(batch))]) for batch in shuffled.iter(work.batch))
    if isinstance(work, Small):
        stream = datasets.Dataset.from_list(list(work.records)).to_iterable_dataset()
        for function in work.maps:
            stream = stream.map(function)
        return lambda: map(stack, group(stream.filter(work.keep), work.batch))
    if isinstance(work, Tokens):
        table = datasets.Dataset.from_dict({"tokens": [record["tokens"] for record in work.records]})
        stream = table.with_format("numpy").to_iterable_dataset().shuffle(seed=0, buffer_size=SHUFFLED)

        def pack_many(columns: dict[str, Any]) -> Batch:
            return stack(list(pack({"tokens": tokens} for tokens in columns["tokens"])))

        rows = stream.map(pack_many, batched=True, batch_size=SHUFFLED)
        return lambda: map(stack, group(rows, work.batch))
    if isinstance(work, Photos):
        table = datasets.Dataset.from_list(list(work.records))
        return prepare_torch_loader(work, MadeOf(table, work))
    assert isinstance(work, Trajectories)
    features = datasets.Features(
        {
            "image": datasets.Array3D((64, 64, 3), "uint8"),
            "state": datasets.Sequence(datasets.Value("float32"), 8),
            "action": datasets.Sequence(datasets.Value("float32"), 7),
        }
    )
    return prepare_torch_loader(work, FramesOf(datasets.Dataset.from_dict(dict(work.arrays), features), work))


def rows_of(batch: Batch) -> Iterator[Record]:
    """The records of a batch that was read as a whole: reading single records takes six times as long."""
    return (dict(zip(batch, values)) for values in zip(*batch.values()))


class MadeOf(Made):
    """Records of a table of Hugging Face, changed by the maps of a work."""

    def __init__(self, table: Any, work: Work):
        super().__init__(work)
        self.table = table

    def __getitem__(self, index: int) -> Record:
        record = self.table[index]
        for function in self.work.maps:
            record = function(record)
        return record


class FramesOf(Made):
    """Windows of a table of Hugging Face that has a row for each frame, as LeRobot reads them."""

    def __init__(self, table: Any, work: Trajectories):
        super().__init__(work)
        self.images = table.select_columns(["image"]).with_format("numpy", dtype=np.uint8)
        self.states = table.select_columns(["state"]).with_format("numpy")
        self.actions = table.select_columns(["action"]).with_format("numpy")

    def __getitem__(self, index: int) -> Record:
        windows: Any = self.work.records
        seen, chunk = windows.find_rows(index)
        actions = self.actions[index : index + chunk]["action"]
        return make_window(self.images[seen]["image"], self.states[seen]["state"], actions)


def prepare_webdataset(work: Work) -> Epoch:
    webdataset = importlib.import_module("webdataset")
    if isinstance(work, Trajectories):  # a member is an episode: a stream of frames could not look back
        bounds = itertools.pairwise([0, *np.cumsum(work.lengths).tolist()])
        members: Iterable[Any] = ({name: a[low:high] for name, a in work.arrays.items()} for low, high in bounds)
    else:
        members = work.records
    shards = write_shards(members, WORKERS if isinstance(work, Photos) else 1)
    options = {"shardshuffle": False, "empty_check": False}
    if isinstance(work, Photos):
        stream = webdataset.WebDataset(shards, nodesplitter=None, **options).repeat().shuffle(SHUFFLED).map(load)
        batches = stream.map(work.maps[0]).batched(work.batch, collation_fn=stack)
        return lambda: webdataset.WebLoader(batches, batch_size=None, num_workers=WORKERS, persistent_workers=True)
    stream = webdataset.WebDataset(shards, **options)
    if isinstance(work, Trajectories):
        windows = stream.map(load).compose(cut_windows).shuffle(SHUFFLED)
        return lambda: windows.batched(work.batch, collation_fn=stack)
    if not isinstance(work, Small):
        stream = stream.shuffle(SHUFFLED)
    stream = stream.map(load)
    for function in work.maps:
        stream = stream.map(function)
    if isinstance(work, Small):
        stream = stream.select(work.keep)
    if isinstance(work, Tokens):
        stream = stream.compose(pack)
    return lambda: map(work.finish, stream.batched(work.batch, collation_fn=stack))


def load(sample: dict[str, Any]) -> Any:
    """A record as it was written into a shard."""
    return pickle.loads(sample["pyd"])


def cut_windows(episodes: Iterable[dict[str, np.ndarray]]) -> Iterator[Record]:
    """All windows of a stream of episodes."""
    for episode in episodes:
        for index in range(len(episode["image"])):
            seen = [max(index - 1, 0), index]
            yield make_window(
                episode["image"][seen], episode["state"][seen], episode["action"][index : index + HORIZON]
            )


def write_shards(records: Iterable[Any], count: int) -> list[str]:
    """Records in tar files, one member each; the files are removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="bushel-peers-")
    atexit.register(folder.cleanup)
    paths = [str(Path(folder.name) / f"{number}.tar") for number in range(count)]
    shards = [tarfile.open(path, "w") for path in paths]  # noqa: SIM115
    for index, record in enumerate(records):
        content = pickle.dumps(record, protocol=5)
        info = tarfile.TarInfo(f"{index:08}.pyd")
        info.size = len(content)
        shards[index % count].addfile(info, BytesIO(content))
    for shard in shards:
        shard.close()
    return paths


LIBRARIES: dict[str, tuple[str, Callable[[Work], Epoch]]] = {
    "Bushel": ("bushel", prepare_bushel),
    "Grain": ("grain", prepare_grain),
    "torch DataLoader": ("torch", prepare_torch),
    "SPDL": ("spdl", prepare_spdl),
    "Ray Data": ("ray", prepare_ray),
    "HF datasets": ("datasets", prepare_datasets),
    "webdataset": ("webdataset", prepare_webdataset),
}
"""For each library the name of its package, and the function that prepares a work."""
