"""`inspect_target`: finds out what a target is, and lets the module of its format describe it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from bushel.base import redact
from bushel.graph import show
from bushel.inspection import array_formats, episode_formats, record_formats
from bushel.inspection.facts import Facts, list_columns
from bushel.sources import file_access, output_folders
from bushel.sources.paths import Options, expand_path, is_url
from bushel.sources.saved_elements import MANIFEST, Manifest
from bushel.trajectory.episode_formats import detect_kind
from bushel.view.targets import as_dataset, load_target

_STREAMS = {(".tfrecord.gz", ".tfrecords.gz"): "TFRecord, compressed", (".tar",): "WebDataset (tar)"}
_TABLES = {(".arrow", ".feather", ".ipc"): "Arrow", (".lance",): "Lance"}
_STORES = {(".h5", ".hdf5"): "HDF5", (".zarr",): "Zarr"}
_ARRAYS = {(".npy",): "NumPy array", (".npz",): "NumPy archive", (".safetensors",): "safetensors"}
_PARQUET = {(".parquet",): "Parquet"}
_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".wav", ".flac", ".mp3", ".mp4")


def inspect_target(target: str, *, options: Mapping[str, Any] | None = None, scan: bool = False) -> Facts:
    """What is in a file, a pattern, a folder, or a pipeline.

    Args:
      target: what `bushel inspect` takes: a path, a pattern or a URL, or a pipeline such as "train.py:make_dataset".
      options: options of the store that holds the files.
      scan: whether to read all of it. Otherwise metadata and a few records are read.
    """
    if is_python_target(target):
        return inspect_pipeline(target)
    path, given = expand_path(target), dict(options) if options else None
    facts = Facts(redact.show(path), "")
    kind = _find_episodes(path, given)
    if kind is not None:
        return episode_formats.inspect_episodes(facts, kind, path, given, scan)
    if _is_saved(path, given):
        return _inspect_saved(facts, path, given, scan)
    if _has_file(path, "dataset_info.json", given):
        return _inspect_tfds(facts, path, given, scan)
    files = _find_files(path, given)
    if files == [path] and not is_url(path) and not os.path.exists(path):
        raise FileNotFoundError(f"{facts.target} does not exist.")
    return _inspect_files(facts, files, given, scan)


def open_target(target: str, *, split: str | None = None, options: Mapping[str, Any] | None = None) -> Any:
    """The object that a target names: a dataset, a source, or the `EpisodeBuilder` of a robot data set."""
    given = dict(options) if options else None
    if not is_python_target(target):
        path = expand_path(target)
        kind = _find_episodes(path, given)
        if kind is not None:
            return episode_formats.open_data_set(path, kind, given)
    return load_target(target, split=split, options=given)


def is_python_target(target: str) -> bool:
    """Whether a target names a Python object: `train.py:make_dataset`, `module:name`."""
    place, colon, name = target.rpartition(":")
    return bool(
        colon and place and "//" not in name and name.replace(".", "").isidentifier() and not os.path.exists(target)
    )


def inspect_pipeline(target: Any, name: str = "") -> Facts:
    """The steps of a pipeline. One element is read where shapes are not known otherwise."""
    given = load_target(target) if isinstance(target, str) else target
    dataset = as_dataset(given)
    facts = Facts(name or (target if isinstance(target, str) else type(target).__name__), "pipeline", unit="elements")
    described = dataset.describe() if hasattr(dataset, "describe") else show.describe(dataset._node)
    facts.steps = [dict(zip(("step", "length", "element"), step)) for step in described.steps]
    length = facts.steps[-1]["length"].replace(",", "")
    facts.count = int(length) if length.isdecimal() else None
    if length == "endless":
        facts.details["length"] = "endless"
    return facts


def _find_episodes(path: str, options: Options | None) -> str | None:
    """The format of a data set of episodes; None if it is something else."""
    if _has_file(path, "meta/info.json", options):
        return "lerobot"
    lowered = redact.remove_query(path).lower()
    if lowered.endswith((".h5", ".hdf5")):
        return "robomimic" if _is_robomimic(path, options) else None
    if not _is_folder(path, options):
        return None
    try:
        kind = detect_kind(path, options)
    except (ValueError, OSError):
        return None
    if kind == "rlds":
        return kind if _has_steps(path, options) else None
    if kind in ("aloha", "npz"):
        return kind if _can_open(kind, path, options) else None
    return kind


def _is_robomimic(path: str, options: Options | None) -> bool:
    from bushel.sources.hdf5 import HDF5Format

    try:
        demos = HDF5Format(path, options).open_groups(["data", "*"])
        return bool(demos) and all("actions" in demo for demo in demos.values())
    except record_formats.READ_ERRORS:
        return False


def _can_open(kind: str, path: str, options: Options | None) -> bool:
    """Whether the files of a folder are episodes: those of a format can be anything else, too."""
    try:
        episode_formats.open_data_set(path, kind, options).episodes("all")[0]  # HDF5 or npz: opening reads little
    except Exception:
        return False
    return True


def _has_steps(path: str, options: Options | None) -> bool:
    """Whether a data set of TFDS has episodes: its features have `steps`."""
    try:
        return bool(episode_formats.open_data_set(path, "rlds", options).features.steps)
    except record_formats.READ_ERRORS:
        return False


def _is_saved(path: str, options: Options | None) -> bool:
    return _has_file(path, MANIFEST, options)


def _has_file(path: str, name: str, options: Options | None) -> bool:
    try:
        return output_folders.open_folder(path, options).exists(name)
    except (OSError, ValueError):
        return False


def _is_folder(path: str, options: Options | None) -> bool:
    if not is_url(path):
        return os.path.isdir(path)
    try:
        return bool(output_folders.open_folder(path, options).names())
    except (OSError, ValueError):
        return False


def _inspect_saved(facts: Facts, path: str, options: Options | None, scan: bool) -> Facts:
    folder = output_folders.open_folder(path, options)
    manifest = Manifest.parse(folder.read(MANIFEST), folder.shown(MANIFEST))
    _inspect_files(facts, [folder.path(name) for name in manifest.files], options, scan)
    inner, facts.format, facts.unit = facts.format, "saved by ds.save", "elements"
    facts.details |= {"files are": inner, "pipeline": manifest.identity or "not known"}
    for file, count in zip(facts.files, manifest.counts):
        if file.records is not None and file.records != count and not file.error:
            file.error = f"{file.name} should have {count:,} elements, as {MANIFEST} says; it has {file.records:,}."
            facts.damage.append(file.error)
    facts.count = sum(manifest.counts)
    if not facts.damage:
        from bushel.sources.saved_elements import SavedDataSource

        source = SavedDataSource(path, storage_options=dict(options) if options else None)
        facts.schema = list(list_columns(source[0])) if len(source) else []
        facts.details.pop("records are", None)
    return facts


def _inspect_tfds(facts: Facts, path: str, options: Options | None, scan: bool) -> Facts:
    from bushel.sources.tfds_json import read_json, shard_lengths, shard_names, split_entries

    info = read_json(f"{path.rstrip('/')}/dataset_info.json", options)
    name = info["name"].text()
    kind = info["fileFormat"].text() if "fileFormat" in info else "tfrecord"
    entries = split_entries(info)
    names = [file for entry in entries.values() for file in shard_names(name, entry, kind)]
    if not names:
        raise ValueError(f"{facts.target}: its dataset_info.json names no files.")
    stated = [count for entry in entries.values() for count in shard_lengths(entry)]
    ending = f".{kind}"
    _inspect_files(facts, [f"{path.rstrip('/')}/{file}" for file in names], options, scan, ending=ending)
    facts.details |= {
        "files are": facts.format,
        "name": name,
        "version": info["version"].text() if "version" in info else "",
    }
    facts.format, facts.unit = "TFDS", "examples"
    facts.splits = {split: sum(shard_lengths(entry)) for split, entry in entries.items()}
    for file, count in zip(facts.files, stated):
        if file.records is not None and file.records != count and not file.error:
            file.error = (
                f"{file.name} should have {count:,} examples, as dataset_info.json says; it has {file.records:,}."
            )
            facts.damage.append(file.error)
    return facts


def _find_files(path: str, options: Options | None) -> list[str]:
    """The files of a path: itself, what a pattern finds, or the files of a folder that have a format we know."""
    if _find_format(path) is not None or not _is_folder(path, options):
        return file_access.find_files(path, options)
    folder = output_folders.open_folder(path, options)
    names = [name for name in folder.names(deep=True) if not os.path.basename(name).startswith(".")]
    known = [name for name in names if _find_format(name) is not None]
    files = known or [name for name in names if name.lower().endswith(_IMAGES)]
    if not files:
        raise ValueError(
            f"{redact.show(path)} has {len(names):,} files, and none of a format that Bushel reads. Name a file, or a "
            "pattern such as 'data/*.tfrecord*'."
        )
    return [folder.path(name) for name in files]


_KNOWN = {
    ending: name
    for table in (_STREAMS, _TABLES, _STORES, _ARRAYS, _PARQUET)
    for endings, name in table.items()
    for ending in endings
} | {ending: name for endings, (name, _) in record_formats.FORMATS.items() for ending in endings}


def _find_format(path: str) -> str | None:
    """The format that the ending of a name stands for; shards such as "x.tfrecord-00000-of-00004" count, too."""
    lowered = redact.remove_query(path).rstrip("/").lower()
    for ending in sorted(_KNOWN, key=len, reverse=True):
        base, dash, number = lowered.rpartition("-of-")
        shard = base.rpartition("-")[0] if dash and number.isdecimal() else lowered
        if lowered.endswith(ending) or shard.endswith(ending):
            return _KNOWN[ending]
    return None


def _inspect_files(
    facts: Facts, paths: list[str], options: Options | None, scan: bool, *, ending: str | None = None
) -> Facts:
    kinds = {_find_format(ending or path): path for path in paths}
    if len(kinds) > 1:
        named = ", ".join(sorted(str(kind or "unknown") for kind in kinds))
        raise ValueError(f"{facts.target} has files of several formats ({named}): inspect them one by one.")
    ((kind, first),) = kinds.items()
    if kind is None:
        if first.lower().endswith(_IMAGES):
            facts.format = "one file per record"
            return record_formats.inspect_whole_files(facts, paths, options)
        raise ValueError(
            f"Bushel does not know the format of {redact.show(first)}: it ends in none of {', '.join(sorted(_KNOWN))}."
        )
    facts.format = kind
    if kind in _STREAMS.values():
        return record_formats.inspect_streams(facts, paths, options, scan)
    if kind == "Parquet":
        return array_formats.inspect_parquet(facts, paths, options, scan)
    if kind in _TABLES.values():
        return array_formats.inspect_tables(facts, paths, options, scan)
    if kind in _STORES.values():
        return array_formats.inspect_stores(facts, paths, options, scan)
    if kind in _ARRAYS.values():
        return array_formats.inspect_arrays(facts, paths, options, scan)
    open_source = next(load for name, load in record_formats.FORMATS.values() if name == kind)
    return record_formats.inspect_records(facts, paths, open_source, options, scan)
