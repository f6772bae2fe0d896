"""Public names: what is exported, what Grain has too, and a Grain program that runs on Bushel unchanged."""

import importlib
import inspect
import operator
import re
from pathlib import Path

import grain
import grain.python
import numpy as np
import pytest

import bushel

PUBLIC = {
    "bushel": [
        "Batch",
        "BushelDeprecationWarning",
        "BushelError",
        "BushelWarning",
        "Column",
        "DamagedFile",
        "DataLoader",
        "DataLoaderIterator",
        "Dataset",
        "DatasetIterator",
        "DatasetOptions",
        "Description",
        "ElasticIterator",
        "ElementOrigin",
        "IdentityExplanation",
        "IdentityPart",
        "IndexSampler",
        "IterDataset",
        "MapDataset",
        "MapTransform",
        "MultiprocessingOptions",
        "NoSharding",
        "OrbaxCheckpointHandler",
        "OtherFile",
        "PackedMapDataset",
        "PipelineNotSent",
        "Pool",
        "PositionOutOfRange",
        "RandomAccessDataSource",
        "RandomMapTransform",
        "RayOptions",
        "ReadOptions",
        "Record",
        "RecordMetadata",
        "Report",
        "ReportServer",
        "Sampler",
        "SavedByAnotherPipeline",
        "SequentialSampler",
        "ShardByJaxProcess",
        "ShardOptions",
        "ShownElement",
        "SkippedElements",
        "SourceRecord",
        "Stage",
        "StateMismatch",
        "StoppedByUser",
        "TooLarge",
        "TooManySkipped",
        "Transfer",
        "Transformation",
        "UnknownFormat",
        "WorkerDied",
        "WorkerOptions",
        "WorkerTimeout",
        "Written",
        "__version__",
        "__version_info__",
        "checkpoint",
        "config",
        "constants",
        "experimental",
        "explain_identity",
        "load",
        "multiprocessing",
        "on_progress",
        "python",
        "samplers",
        "serve_report",
        "sharding",
        "sources",
        "testing",
        "transforms",
    ],
    "bushel.checkpoint": ["CheckpointHandler", "CheckpointRestore", "CheckpointSave"],
    "bushel.constants": ["DATASET_INDEX", "EPOCH", "INDEX", "META_FEATURES", "RECORD", "RECORD_KEY", "SEED"],
    "bushel.experimental": [
        "BOSHandling",
        "BestFitPackIterDataset",
        "CacheIterDataset",
        "ConcatThenSplitIterDataset",
        "DatasetOptions",
        "ElasticIterator",
        "ExecutionTrackingMode",
        "FirstFitPackIterDataset",
        "FlatMapIterDataset",
        "FlatMapMapDataset",
        "FlatMapTransform",
        "InterleaveIterDataset",
        "IterableIterDataset",
        "LimitIterDataset",
        "MapWithIndexTransform",
        "PackAndBatchOperation",
        "ParquetIterDataset",
        "PerformanceConfig",
        "RebatchIterDataset",
        "RepeatIterDataset",
        "RngPool",
        "ShapeDtypeStruct",
        "ShapeDtypeStructProtocol",
        "TFRecordIterDataset",
        "ThreadPrefetchDatasetIterator",
        "ThreadPrefetchIterDataset",
        "WebDatasetIterDataset",
        "WindowShuffleIterDataset",
        "WindowShuffleMapDataset",
        "WithOptionsIterDataset",
        "ZipIterDataset",
        "ZipMapDataset",
        "apply_transformations",
        "assert_equal_output_after_checkpoint",
        "batch_and_pad",
        "device_put",
        "get_element_spec",
        "get_next_index",
        "index_shuffle",
        "multithread_prefetch",
        "pick_performance_config",
        "set_next_index",
    ],
    "bushel.multiprocessing": ["MultiprocessingOptions", "SharedMemoryArray", "SharedMemoryArrayMetadata"],
    "bushel.python": [
        "ArrayRecordDataSource",
        "Batch",
        "BatchOperation",
        "DATASET_INDEX",
        "DataLoader",
        "DatasetIterator",
        "DatasetSelectionMap",
        "EPOCH",
        "FilterOperation",
        "FilterTransform",
        "INDEX",
        "InMemoryDataSource",
        "IndexSampler",
        "IterDataset",
        "META_FEATURES",
        "MapDataset",
        "MapOperation",
        "MapTransform",
        "MapWithIndexTransform",
        "MultiprocessingOptions",
        "NoSharding",
        "Operation",
        "PyGrainCheckpointHandler",
        "PyGrainCheckpointRestore",
        "PyGrainCheckpointSave",
        "PyGrainDatasetIterator",
        "RECORD",
        "RECORD_KEY",
        "RandomAccessDataSource",
        "RandomMapOperation",
        "RandomMapTransform",
        "RangeDataSource",
        "ReadOptions",
        "Record",
        "RecordMetadata",
        "SEED",
        "Sampler",
        "SequentialSampler",
        "ShardByJaxProcess",
        "ShardOptions",
        "SharedMemoryArray",
        "Transformation",
        "Transformations",
        "config",
        "experimental",
        "load",
    ],
    "bushel.samplers": ["IndexSampler", "Sampler", "SequentialSampler"],
    "bushel.sharding": ["NoSharding", "ShardByJaxProcess", "ShardOptions"],
    "bushel.sources": [
        "ArrayDataSource",
        "ArrayRecordDataSource",
        "ArrowDataSource",
        "BagzDataSource",
        "Columns",
        "FileDataSource",
        "FixedRecords",
        "HDF5DataSource",
        "LanceDataSource",
        "Limits",
        "LineDataSource",
        "ParquetDataSource",
        "RaggedDataSource",
        "RandomAccessDataSource",
        "RangeDataSource",
        "SharedMemoryDataSource",
        "TFDSDataSource",
        "TFRecordDataSource",
        "ZarrDataSource",
        "check_checksums",
        "convert",
        "decode_audio",
        "decode_example",
        "decode_image",
        "encode_example",
        "file_fingerprint",
        "get_limits",
        "load_arrays",
        "open",
        "set_limits",
        "write_checksums",
    ],
    "bushel.transforms": [
        "Batch",
        "DatasetSelectionMap",
        "Filter",
        "FlatMap",
        "Map",
        "MapWithIndex",
        "RandomMap",
        "TfRandomMap",
        "Transformation",
        "Transformations",
    ],
}

# Modules that Grain has no counterpart of.
ALONE = {
    "bushel.trajectory": [
        "BadTrajectory",
        "CLIPTextProcessor",
        "DatasetConfig",
        "EpisodeBuilder",
        "Episodes",
        "HFTokenizer",
        "LeRobotFeature",
        "LeRobotSource",
        "LoaderIterator",
        "MixtureConfig",
        "ModuleSpec",
        "NormalizationType",
        "NotTrained",
        "RLDSBuilder",
        "StatementError",
        "Statistics",
        "TextProcessor",
        "TrajectoryDataset",
        "TrajectoryLoader",
        "Windows",
        "apply_frame_transforms",
        "apply_trajectory_transforms",
        "augment_image",
        "augment_images",
        "build_dataset_from_config",
        "convert_episodes",
        "create_validation_dataset",
        "data_utils",
        "decode_depth",
        "decode_image",
        "get_dataloader",
        "get_dataset",
        "get_dataset_statistics",
        "goal_relabeling",
        "load_statistics",
        "make_dataset_from_lerobot",
        "make_dataset_from_rlds",
        "make_interleaved_dataset",
        "make_oxe_dataset_kwargs",
        "make_oxe_dataset_kwargs_and_weights",
        "make_single_dataset",
        "normalize",
        "normalize_action_and_proprio",
        "obs_transforms",
        "open_episodes",
        "oxe",
        "process_text",
        "reencode_videos",
        "resize_depth_image",
        "resize_image",
        "save_statistics",
        "task_augmentation",
        "text_processing",
        "traj_transforms",
        "unnormalize",
        "unnormalize_action_and_proprio",
        "window_frames",
        "write_rlds",
    ],
    "bushel.jit": [
        "ArraySource",
        "BatchTransform",
        "BufferTransform",
        "Chunk",
        "ChunkLoader",
        "ColorJitterTransform",
        "CompiledIterator",
        "CutMixTransform",
        "CutoutTransform",
        "DataLoader",
        "DiskSource",
        "FlattenImageTransform",
        "FlattenTransform",
        "GymnaxSource",
        "GymnaxSourceState",
        "HostCallbackTransform",
        "IndexedState",
        "LoaderState",
        "MapTransform",
        "MixupTransform",
        "NormalizeImageTransform",
        "PrioritisedBuffer",
        "PriorityState",
        "RandomCropTransform",
        "RandomFlipTransform",
        "RandomMapTransform",
        "RenameTransform",
        "ReplayBuffer",
        "ReplayState",
        "ShardedSource",
        "Source",
        "TimeSeriesBatchTransform",
        "TrajectoryBuffer",
        "TrajectoryState",
        "Window",
        "WindowSource",
        "cereal",
        "datasets",
        "masked_mean",
        "mix",
        "n_step_return",
    ],
    "bushel.jit.cereal": [
        "ArraySampleSource",
        "BatchTransform",
        "CIFAR10Dataset",
        "DataLoader",
        "DevicePutTransform",
        "DiskSampleSource",
        "FlattenImageTransform",
        "GymnaxSource",
        "HostCallbackTransform",
        "LoaderState",
        "MNISTDataset",
        "MNISTDiskSource",
        "MapTransform",
        "NormalizeImageTransform",
        "Source",
        "dataset_to_jax",
        "set_loader_policy_state",
        "set_source_policy_state",
    ],
    "bushel.jit.datasets": [
        "CIFAR100Dataset",
        "CIFAR10Dataset",
        "CelebADataset",
        "DailyMinTemperaturesDataset",
        "EMNISTDataset",
        "Example",
        "FashionMNISTDataset",
        "KMNISTDataset",
        "MNISTDataset",
        "SunspotsDataset",
        "time_utils",
    ],
    "bushel.jit.datasets.time_utils": [
        "load_time_series_from_csv",
        "load_value_column",
        "make_sequence_disk_source",
        "prepare_seq_to_seq_windows",
        "prepare_time_series_windows",
        "select_split",
        "sliding_window_many",
    ],
}

# Names that Grain does not have; every other public name is one of Grain's.
SHORT_SPELLINGS = {  # of samplers, sharding, transforms, sources and checkpoint, at the top level
    "Batch",
    "IndexSampler",
    "MapTransform",
    "NoSharding",
    "OrbaxCheckpointHandler",
    "RandomAccessDataSource",
    "RandomMapTransform",
    "Sampler",
    "SequentialSampler",
    "ShardByJaxProcess",
    "ShardOptions",
    "Transformation",
}
OURS = {
    "bushel": {
        "BushelDeprecationWarning",
        "BushelError",
        "BushelWarning",
        "Column",
        "DamagedFile",
        "Dataset",
        "DatasetOptions",
        "Description",
        "ElasticIterator",
        "ElementOrigin",
        "IdentityExplanation",
        "IdentityPart",
        "OtherFile",
        "PackedMapDataset",
        "PipelineNotSent",
        "Pool",
        "PositionOutOfRange",
        "RayOptions",
        "Report",
        "ReportServer",
        "SavedByAnotherPipeline",
        "ShownElement",
        "SkippedElements",
        "SourceRecord",
        "Stage",
        "StateMismatch",
        "StoppedByUser",
        "TooLarge",
        "TooManySkipped",
        "Transfer",
        "UnknownFormat",
        "WorkerDied",
        "WorkerOptions",
        "WorkerTimeout",
        "Written",
        "explain_identity",
        "on_progress",
        "serve_report",
        "testing",
    }
    | SHORT_SPELLINGS,
    "bushel.transforms": {"FlatMap"},  # Grain: experimental.FlatMapTransform
    "bushel.experimental": {"IterableIterDataset", "WebDatasetIterDataset"},
    "bushel.sources": {
        "ArrayDataSource",
        "ArrowDataSource",
        "BagzDataSource",
        "Columns",
        "FileDataSource",
        "FixedRecords",
        "HDF5DataSource",
        "LanceDataSource",
        "Limits",
        "LineDataSource",
        "ParquetDataSource",
        "RaggedDataSource",
        "TFDSDataSource",
        "TFRecordDataSource",
        "ZarrDataSource",
        "check_checksums",
        "convert",
        "decode_audio",
        "decode_example",
        "decode_image",
        "encode_example",
        "file_fingerprint",
        "get_limits",
        "load_arrays",
        "open",
        "set_limits",
        "write_checksums",
    },
}


@pytest.mark.parametrize("module", [*PUBLIC, *ALONE])
def test_public_names_are_these(module):
    exported = importlib.import_module(module).__all__
    assert sorted(exported) == (PUBLIC | ALONE)[module]
    assert len(set(exported)) == len(exported)


@pytest.mark.parametrize("module", [*PUBLIC, *ALONE])
def test_public_names_are_there_and_are_told(module):
    namespace = importlib.import_module(module)
    for name in (PUBLIC | ALONE)[module]:
        value = getattr(namespace, name)
        if inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value):
            assert (value.__doc__ or "").strip(), f"{name} has no docstring"


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_name_is_grains_or_listed_as_ours(module):
    theirs = importlib.import_module(module.replace("bushel", "grain"))
    assert {name for name in PUBLIC[module] if not hasattr(theirs, name)} == OURS.get(module, set())


def test_the_version_is_a_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", bushel.__version__)
    assert ".".join(map(str, bushel.__version_info__)) == bushel.__version__


@pytest.mark.parametrize("name", sorted(SHORT_SPELLINGS))
def test_a_short_spelling_is_the_same_thing(name):
    where = {
        "OrbaxCheckpointHandler": bushel.checkpoint.CheckpointHandler,
        "RandomAccessDataSource": bushel.sources.RandomAccessDataSource,
    }
    assert getattr(bushel, name) is where.get(name, getattr(bushel.python, name, None))


def methods(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(function):
    return [
        (entry.name, entry.kind, entry.default)
        for entry in inspect.signature(function).parameters.values()
        if entry.name not in OUR_PARAMETERS and not entry.name.startswith("_")
    ]


OUR_PARAMETERS = {
    *("vectorized", "on_error", "skip_limit", "budget_bytes", "timeout_s", "check", "remainder"),
    *("options", "execution_tracking_mode"),
    *("columns", "storage_options", "verify", "exact", "temperature", "when_exhausted"),
}
OUR_METHODS = {
    *("take", "skip", "get", "split", "unbatch", "element_spec", "origins", "epoch", "seek"),
    *("iterate_on", "with_options", "cache", "flat_map", "limit", "rebatch", "repeat", "window_shuffle", "zip"),
    *("column", "where", "sample", "order_by", "pack", "bucket", "origin", "describe", "report", "skipped", "save"),
    *("to_arrow", "to_device", "to_pandas"),
    "ray_prefetch",
    "show",
}
# What a Grain program may call and does not find yet.
NOT_YET = {
    "MapDataset": set(),
    "IterDataset": set(),
    "DatasetIterator": set(),
}


@pytest.mark.parametrize("name", NOT_YET)
def test_methods_are_grains(name):
    ours, theirs = methods(getattr(bushel, name)), methods(getattr(grain, name))
    assert ours - theirs <= OUR_METHODS
    assert theirs - ours == NOT_YET[name]


@pytest.mark.parametrize("name", ["MapDataset", "IterDataset"])
def test_factories_are_grains_and_live_on_the_class_alone(name):
    ours, theirs = type(getattr(bushel, name)), type(getattr(grain, name))
    assert methods(ours) - methods(theirs) == ({"source"} if name == "IterDataset" else set())
    assert methods(theirs) <= methods(ours)
    for factory in methods(theirs) - methods(type):
        assert parameters(getattr(ours, factory)) == parameters(getattr(theirs, factory))
        assert not hasattr(bushel.MapDataset.range(3), factory)


MORE = {"mp_prefetch": {"num_workers"}}
"""Keywords that methods of Grain have here in addition."""


@pytest.mark.parametrize("name", ["MapDataset", "IterDataset", "DatasetIterator"])
def test_arguments_and_defaults_are_grains(name):
    ours, theirs = getattr(bushel, name), getattr(grain, name)
    for method in sorted((methods(ours) & methods(theirs)) - {"parents"}):
        own = [entry for entry in parameters(getattr(ours, method)) if entry[0] not in MORE.get(method, set())]
        assert own == parameters(getattr(theirs, method)), method


SIGNED = [
    (module, name)
    for module in PUBLIC
    for name in PUBLIC[module]
    if name not in OURS.get(module, set()) and callable(getattr(importlib.import_module(module), name))
]


@pytest.mark.parametrize(("module", "name"), SIGNED)
def test_names_of_arguments_are_grains(module, name):
    ours = getattr(importlib.import_module(module), name)
    theirs = getattr(importlib.import_module(module.replace("bushel", "grain")), name)
    try:
        expected = parameters(theirs)
    except ValueError:  # an extension function without a signature
        return
    found = parameters(ours)
    assert [entry[0] for entry in found] == [entry[0] for entry in expected]
    plain = (bool, int, float, str, type(None), tuple)
    for our, their in zip(found, expected, strict=True):
        assert our[2] == their[2] or not isinstance(their[2], plain), our[0]


CLASSES = {
    "DataLoader": set(),
    "DataLoaderIterator": {"report", "close", "skipped"},
    "samplers.IndexSampler": {"record_keys", "num_records", "shard_size", "shard_length", "endless"},
    "samplers.SequentialSampler": {"record_keys", "num_records"},
    "sharding.ShardOptions": set(),
    "Record": set(),
    "RecordMetadata": set(),
    "multiprocessing.SharedMemoryArray": set(),
    "multiprocessing.SharedMemoryArrayMetadata": set(),
    "checkpoint.CheckpointHandler": set(),
}


@pytest.mark.parametrize("path", CLASSES)
def test_methods_of_the_other_doors_are_grains(path):
    ours, theirs = (operator.attrgetter(path)(library) for library in (bushel, grain))
    assert methods(theirs) - methods(ours) == set()
    assert methods(ours) - methods(theirs) <= CLASSES[path]
    for method in methods(theirs):
        if inspect.isfunction(getattr(theirs, method)):
            assert [p[0] for p in parameters(getattr(ours, method))] == [
                p[0] for p in parameters(getattr(theirs, method))
            ], method


def test_constants_are_grains():
    for name in PUBLIC["bushel.constants"]:
        assert getattr(bushel.constants, name) == getattr(grain.constants, name)


def test_settings_have_grains_names_and_defaults():
    for name in ("py_debug_mode", "py_traceback_filtering", "tf_lookup_batch_size", "tf_prefetch_buffer_size"):
        assert bushel.config.get_or_default(name) == grain.config.get_or_default(name)
    with pytest.raises(ValueError, match=r"Unrecognized config option: py_debug\. There are"):
        bushel.config.update("py_debug", True)
    with pytest.raises(ValueError, match=r"Please use config\.update"):
        bushel.config.py_debug_mode = True


def test_read_options_have_grains_defaults():
    ours, theirs = bushel.ReadOptions(), grain.ReadOptions()
    assert (ours.num_threads, ours.prefetch_buffer_size) == (theirs.num_threads, theirs.prefetch_buffer_size)


def missing():
    """Public names of Grain that Bushel does not have, module by module."""
    for module in PUBLIC:
        ours, theirs = importlib.import_module(module), importlib.import_module(module.replace("bushel", "grain"))
        for name in dir(theirs):
            if not name.startswith("_") and not hasattr(ours, name):
                yield name


def test_the_page_on_grain_lists_what_is_not_there_yet():
    page = (Path(__file__).parent.parent / "docs" / "grain.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(?:\w+\.)*(\w+)`", page.partition("## Not there yet")[2]))
    assert set(missing()) - listed == set()
    assert {name for name in listed if hasattr(bushel, name) or hasattr(bushel.experimental, name)} == set()


# The same program, with one import changed.

PROGRAM = """
import json

import numpy as np


class Tokenise(grain.transforms.Map):
    def map(self, element):
        return np.array([ord(letter) for letter in element])


class Jitter(grain.transforms.RandomMap):
    def random_map(self, element, rng):
        return element + rng.integers(0, 3, size=element.shape)


class Short(grain.transforms.Filter):
    def filter(self, element):
        return len(element) == 4


class Positions(grain.transforms.MapWithIndex):
    def map_with_index(self, index, element):
        return {"index": index, "tokens": element}


class Halves(grain.experimental.FlatMapTransform):
    max_fan_out = 2

    def flat_map(self, element):
        return [element[:2], element[2:]]


class Words:
    def __len__(self):
        return 7

    def __getitem__(self, index):
        return ["pear", "fig", "plum", "kiwi", "lime", "apple", "date"][index]

    def __repr__(self):
        return "Words"


def pipelines():
    words = grain.MapDataset.source(Words())
    tokens = words.seed(7).shuffle().map(Tokenise()).random_map(Jitter())
    yield tokens.repeat(2).to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=8))
    yield tokens.to_iter_dataset().filter(Short()).map_with_index(Positions()).batch(2)
    yield tokens.filter(Short()).to_iter_dataset().apply([Halves(), grain.transforms.Batch(3)])
    yield grain.MapDataset.mix([words, grain.MapDataset.range(100, 120).map(str)], weights=[0.3, 0.7])
    yield grain.MapDataset.concatenate([words[::2], words[1::2]]).batch(3, batch_fn=list)
    yield grain.experimental.ZipMapDataset([words, words.seed(1).shuffle()]).map(" ".join)
    yield grain.IterDataset.mix(
        {"a": words.repeat().to_iter_dataset(), "b": grain.MapDataset.range(9).map(str).to_iter_dataset()},
        {"a": 2, "b": 1},
    ).pipe(grain.experimental.apply_transformations, grain.transforms.Batch(4, batch_fn=list))


def run(ds):
    it = iter(ds)
    it.start_prefetch()
    head = [next(it) for _ in range(2)]
    state = json.loads(json.dumps(it.get_state()))
    tail = list(it)
    it.close()
    resumed = iter(ds)
    resumed.set_state(state)
    state.pop("bushel", None)
    return state, head, tail, list(resumed)


results = [run(ds) for ds in pipelines()]
"""


def results(first_line):
    namespace = {"__name__": "program"}
    exec(first_line + PROGRAM, namespace)
    return namespace["results"]


def test_a_grain_program_runs_on_bushel():
    ours, theirs = results("import bushel as grain"), results("import grain")
    for number, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
        assert mine[0] == its[0], f"state of pipeline {number}"
        assert bushel.testing.same(mine[1:], its[1:]), f"elements of pipeline {number}"
        assert bushel.testing.same(mine[2], mine[3]), f"resumed run of pipeline {number}"


def test_a_transformation_of_grains_own_class_is_told_apart():
    class Add(grain.transforms.Map):
        def map(self, element):
            return element + 1

    with pytest.raises(TypeError, match="`map` takes a function or a Map transformation, got <"):
        bushel.MapDataset.range(3).map(Add())
    assert list(bushel.MapDataset.range(3).map(Add().map)) == [1, 2, 3]


def batches(library):
    ds = library.MapDataset.range(50).seed(3).shuffle().map(lambda x: x * 2).batch(4).repeat(2)
    return ds.to_iter_dataset().random_map(lambda x, rng: x + rng.integers(5), seed=4)


def cut_rows(library, twice=False):
    ds = library.MapDataset.source([{"x": np.arange(1 + i % 6)} for i in range(60)]).seed(1).shuffle().to_iter_dataset()
    ds = library.experimental.ConcatThenSplitIterDataset(ds, length_struct={"x": 5})
    if twice:
        ds = ds.map(lambda row: {"x": row["x"]})
        ds = library.experimental.ConcatThenSplitIterDataset(ds, length_struct={"x": 4})
    return ds.map(lambda row: row["x"]).batch(2)


@pytest.mark.parametrize("build", [batches, cut_rows, lambda library: cut_rows(library, twice=True)])
def test_a_run_moves_from_grain_to_bushel_and_back(build):
    expected = list(build(grain))
    theirs, ours, theirs_again = iter(build(grain)), iter(build(bushel)), iter(build(grain))
    found = [next(theirs) for _ in range(5)]
    ours.set_state(theirs.get_state())
    found += [next(ours) for _ in range(5)]
    theirs_again.set_state(ours.get_state())
    found += list(theirs_again)
    assert bushel.testing.same(found, expected)
