"""One concept has one name: the public signatures against the table of names in docs/design/api.md."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import grain
import pytest
from helpers.signatures import arguments_of, public_functions

ROOT = Path(__file__).parent.parent

pytest.importorskip("jax")
pytest.importorskip("ray")

# By the reason, then by the function, the arguments that keep a name of the third column. Grain's arguments are not
# listed here: the test looks them up in Grain.
EXCEPTIONS: dict[str, dict[str, str]] = {
    "of CrossFormer, dlimp and Octo": {
        "bushel.trajectory.DatasetConfig.__init__": "data_dir, ignore_errors, num_parallel_calls",
        "bushel.trajectory.MixtureConfig.__init__": "traj_transform_threads, traj_read_threads",
        "bushel.trajectory.MixtureConfig.from_mix": "data_dir",
        "bushel.trajectory.TrajectoryDataset.flatten": "num_parallel_calls",
        "bushel.trajectory.TrajectoryDataset.frame_map": "num_parallel_calls",
        "bushel.trajectory.TrajectoryDataset.iterator": "prefetch",
        "bushel.trajectory.TrajectoryDataset.traj_map": "num_parallel_calls",
        "bushel.trajectory.TrajectoryDataset.with_ram_budget": "gigabytes",
        "bushel.trajectory.apply_frame_transforms": "num_parallel_calls",
        "bushel.trajectory.apply_trajectory_transforms": "num_parallel_calls",
        "bushel.trajectory.get_dataset_statistics": "save_dir, force_recompute",
        "bushel.trajectory.make_dataset_from_rlds": "data_dir, ignore_errors, num_parallel_calls",
        "bushel.trajectory.make_interleaved_dataset": "traj_transform_threads, traj_read_threads",
        "bushel.trajectory.make_oxe_dataset_kwargs": "data_dir",
        "bushel.trajectory.make_oxe_dataset_kwargs_and_weights": "data_dir",
        "bushel.trajectory.oxe.crossformer.make_oxe_dataset_kwargs": "data_dir",
        "bushel.trajectory.oxe.crossformer.make_oxe_dataset_kwargs_and_weights": "data_dir",
        "bushel.trajectory.oxe.octo.make_oxe_dataset_kwargs": "data_dir",
        "bushel.trajectory.oxe.octo.make_oxe_dataset_kwargs_and_weights": "data_dir",
        "bushel.trajectory.oxe.xgym.make_oxe_dataset_kwargs": "data_dir",
        "bushel.trajectory.oxe.xgym.make_oxe_dataset_kwargs_and_weights": "data_dir",
    },
    "of TFDS and TensorFlow: the folder above the name and the version, the files inside of a data set, a tf.Example": {
        "bushel.sources.encode_example": "features",
        "bushel.trajectory.RLDSBuilder.__init__": "data_dir",
        "bushel.trajectory.convert_episodes": "file_format",
        "bushel.trajectory.make_dataset_from_lerobot": "data_dir",
        "bushel.trajectory.open_episodes": "data_dir",
        "bushel.trajectory.write_rlds": "data_dir, file_format",
    },
    "of cyreal": {
        "bushel.jit.DiskSource.__init__": "prefetch_size",
        "bushel.jit.cereal.BatchTransform.__init__": "drop_last, pad_last_batch",
        "bushel.jit.cereal.MNISTDiskSource.__init__": "prefetch_size",
        "bushel.jit.datasets.*.__init__": "data_dir, data_path",
        "bushel.jit.datasets.*make_*disk_source": "prefetch_size",
        "bushel.jit.datasets.time_utils.load_time_series_from_csv": "data_path, filename, url",
    },
    "of Grain, in the twin of a class or method that has it there": {
        "bushel.IterDataset.mp_prefetch": "num_workers",  # an argument of MultiprocessingOptions
        "bushel.IterDataset.ray_prefetch": "options",
        "bushel.RayOptions.__init__": "num_workers",
    },
    "keys of JAX": {
        "bushel.jit.*.apply": "keys",
        "bushel.trajectory.augment_images": "keys",
    },
    "features of an element, as in Grain's packing": {"bushel.MapDataset.bucket": "features"},
    "which records, as `ds.where`": {"bushel.jit.ArraySource.__init__": "where"},
    "the options of a pipeline: DatasetOptions": {
        "bushel.ElasticIterator.__init__": "options",
        "bushel.trajectory.TrajectoryDataset.__init__": "options",
    },
    "to be private": {
        "bushel.trajectory.Episodes.__init__": "folder",
        "bushel.trajectory.TrajectoryDataset.__init__": "threads",
    },
}


def read_table(text: str) -> list[tuple[list[str], list[str]]]:
    """The rows of the table of names: the names to use, and the names never to use."""
    table = text.partition("\n## The table of names\n")[2]
    rows = re.findall(r"^\| [^|`-][^|]* \| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)
    return [(re.findall(r"`([^`]+)`", use), re.findall(r"`([^`]+)`", never)) for use, never in rows if "`" in use]


TABLE = read_table((ROOT / "docs" / "design" / "api.md").read_text(encoding="utf-8"))


def is_grains(name: str, argument: str) -> bool:
    """Whether Grain has this argument in the function of this name."""
    path = name.split(".")[1:]
    for module in (grain, grain.experimental, grain.multiprocessing):  # `bushel` has some names of the last two
        theirs = functools.reduce(lambda value, part: getattr(value, part, None), path, module)
        if callable(theirs) and argument in arguments_of(theirs):
            return True
    return False


def find_synonyms(functions: Mapping[str, Callable[..., Any]]) -> list[tuple[str, str, str]]:
    """Each use of a name that the table forbids: the function, the argument, and the names to use instead."""
    return [
        (name, argument, " or ".join(use))
        for name, function in functions.items()
        for argument in arguments_of(function)
        for use, never in TABLE
        if any(fnmatchcase(argument, pattern) for pattern in never) and not is_grains(name, argument)
    ]


def exceptions() -> list[tuple[str, str]]:
    return [
        (pattern, argument)
        for functions in EXCEPTIONS.values()
        for pattern, arguments in functions.items()
        for argument in arguments.split(", ")
    ]


def is_excepted(name: str, argument: str) -> bool:
    return any(fnmatchcase(name, pattern) and argument == other for pattern, other in exceptions())


def test_an_argument_has_the_name_of_its_concept():
    synonyms = find_synonyms(public_functions())
    lines = [f"{name}({argument}=): {use}" for name, argument, use in synonyms if not is_excepted(name, argument)]
    assert not lines, "The table in docs/design/api.md has other names:\n" + "\n".join(lines)


def test_each_exception_is_needed():
    synonyms = find_synonyms(public_functions())
    assert len(set(exceptions())) == len(exceptions())
    unused = [
        f"{pattern}({argument}=)"
        for pattern, argument in exceptions()
        if not any(fnmatchcase(name, pattern) and argument == other for name, other, _ in synonyms)
    ]
    assert not unused, "No synonyms any more, remove them from EXCEPTIONS:\n" + "\n".join(unused)


def test_the_table_of_names_in_the_document_is_read():
    assert len(TABLE) >= 18
    for use, never in TABLE:
        assert use and never
        assert not set(use) & set(never)
    names = [name for use, _ in TABLE for name in use]
    assert len(names) == len(set(names)), "a name stands for one concept"


def test_the_names_of_the_table_are_used():
    given = {argument for function in public_functions().values() for argument in arguments_of(function)}
    for use, _ in TABLE:
        for name in use:
            assert any(fnmatchcase(argument, name) for argument in given), name


def test_signatures_are_read():
    """The test sees classes, methods, class methods and functions, each with its own arguments."""
    functions = public_functions()
    for name, argument in {
        "bushel.MapDataset.column": "cache_dir",
        "bushel.jit.DataLoader.scan_epoch": "unroll",
        "bushel.trajectory.MixtureConfig.from_mix": "data_dir",
        "bushel.trajectory.make_dataset_from_rlds": "num_parallel_calls",
        "bushel.sources.convert": "target_storage_options",
        "bushel.sources.Limits.__init__": "expansion",
    }.items():
        assert argument in arguments_of(functions[name])
    assert len(functions) > 500


def test_a_synonym_is_found():
    class Loader:
        def __init__(self, path, *, prefetch_size=2, timeout_ms=1, **options): ...

        @classmethod
        def of(cls, folder): ...

    def load(paths, *, drop_last=False, workers=None, budget_mb=1.0): ...

    made_up = {
        "bushel.new.load": load,
        "bushel.new.Loader.__init__": Loader.__init__,
        "bushel.new.Loader.of": Loader.of,
    }
    assert find_synonyms(made_up) == [
        ("bushel.new.load", "drop_last", "remainder or drop_remainder"),
        ("bushel.new.load", "budget_mb", "*_bytes"),
        ("bushel.new.Loader.__init__", "prefetch_size", "buffer_size"),
        ("bushel.new.Loader.__init__", "timeout_ms", "*_s"),
        ("bushel.new.Loader.of", "folder", "path or paths"),
    ]


def test_an_argument_of_grains_keeps_its_name_there_and_only_there():
    def call(num_workers): ...

    assert find_synonyms({"bushel.MultiprocessingOptions.__init__": call}) == []
    assert find_synonyms({"bushel.new.call": call}) == [("bushel.new.call", "num_workers", "workers")]


# Functions that cannot use both kinds of workers.
PROCESSES_ONLY = {"bushel.sources.convert", "bushel.trajectory.convert_episodes", "bushel.trajectory.reencode_videos"}
ACTORS_ONLY = {"bushel.ray.convert", "bushel.ray.jobs_on_cluster"}


def test_workers_are_none_by_default_everywhere():
    found = 0
    for name, function in public_functions().items():
        argument = inspect.signature(function).parameters.get("workers")
        if argument is None:
            continue
        kind = {name in PROCESSES_ONLY: "int", name in ACTORS_ONLY: "int | RayOptions"}.get(True, "int | WorkerOptions")
        assert argument.annotation == f"{kind} | None", name
        assert argument.default is None, name
        assert argument.kind is argument.KEYWORD_ONLY or name == "bushel.ray.jobs_on_cluster", name
        found += 1
    assert found >= 13


# Functions with more than two positional arguments, or a positional bool, by the reason.
POSITIONAL = {
    "of Grain: options and samplers": (
        "bushel.Batch.* bushel.IndexSampler.* bushel.SequentialSampler.* bushel.Shard* "
        "bushel.MultiprocessingOptions.* bushel.RayOptions.* bushel.Data* bushel.ElasticIterator.* "
        "bushel.Record* bushel.sources.RangeDataSource.* bushel.experimental.* bushel.python.* "
        "bushel.IterDataset.mp_prefetch bushel.multiprocessing.*"
    ),
    "of cyreal": ("bushel.jit.*Transform.* bushel.jit.*Source.* bushel.jit.datasets.* bushel.jit.cereal.*"),
    "states and arrays of pure functions": (
        "bushel.jit.*.scan_epoch bushel.jit.*Buffer.* bushel.jit.n_step_return bushel.trajectory.Windows.*"
    ),
    "of CrossFormer and dlimp": (
        "bushel.trajectory.*_*.* bushel.trajectory.TrajectoryDataset.* bushel.trajectory.HFTokenizer.* "
        "bushel.trajectory.augment_images bushel.trajectory.create_validation_dataset "
        "bushel.trajectory.get_dataset_statistics bushel.trajectory.*_oxe_* "
        "bushel.trajectory.*normalize*"
    ),
    "what only Bushel makes": ("bushel.sources.Columns.* bushel.sources.Limits.* bushel.trajectory.Episodes.* "),
    "of Orbax": ("bushel.checkpoint.CheckpointHandler.*"),
    "two numbers for each length": ("bushel.MapDataset.bucket"),
    "places in records": ("bushel.sources.TFRecordDataSource.read_parts"),
}


def list_positional(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The arguments that a caller may give by their places."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [entry for entry in parameters if entry.kind in places and entry.name not in ("self", "cls")]


def has_many_places(function: Callable[..., Any]) -> bool:
    """Whether a call may have more than two arguments without names, or a bool without one."""
    given = list_positional(function)
    return len(given) > 2 or any(isinstance(entry.default, bool) for entry in given)


def test_at_most_two_arguments_are_positional():
    patterns = [pattern for functions in POSITIONAL.values() for pattern in functions.split()]
    found = {name for name, function in public_functions().items() if has_many_places(function)}
    assert not {name for name in found if not any(fnmatchcase(name, pattern) for pattern in patterns)}
    unused = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in found)]
    assert not unused, "No such functions any more, remove them from POSITIONAL: " + ", ".join(unused)


def test_a_bool_without_a_name_is_found():
    def three(a, b, c, *, d=False): ...

    def switch(a, b=True): ...

    def named(a, b=0, *, c=True): ...

    assert [has_many_places(function) for function in (three, switch, named)] == [True, True, False]


def test_no_default_can_be_changed():
    changeable = [
        f"{name}({entry.name}={entry.default!r})"
        for name, function in public_functions().items()
        for entry in list_positional(function)
        if isinstance(entry.default, (list, dict, set, bytearray))
    ]
    assert not changeable
