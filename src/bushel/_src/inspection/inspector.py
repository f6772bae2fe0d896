"""`inspect_target`: finds out what a target is, and lets the module of its format describe it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from bushel._src.base import redact
from bushel._src.graph import show
from bushel._src.inspection import array_formats, episode_formats, record_formats
from bushel._src.inspection.facts import Facts, list_columns
from bushel._src.sources import file_access
from bushel._src.sources.file_formats import find_format, is_array_file, is_whole_file, list_endings
from bushel._src.sources.folder_files import find_folder_files
from bushel._src.sources.folder_listing import Listing, explain_web_folder, file_exists, is_folder, is_web
from bushel._src.sources.output_folders import join_path
from bushel._src.sources.paths import Options, expand_path, is_url
from bushel._src.sources.saved_elements import MANIFEST, Manifest
from bushel._src.sources.source_by_path import HUGGING_FACE
from bushel._src.trajectory.episode_paths import find_kind
from bushel._src.view.scripts import is_python_target, is_script, show_target
from bushel._src.view.targets import as_dataset, load_target

_TARGETS = "Name a file, a folder, a pattern such as 'data/*.parquet', or a dataset in a script: train.py:make_dataset."


def inspect_target(
    target: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    scan: bool = False,
    arguments: Sequence[str] = (),
) -> Facts:
    """What is in a file, a pattern, a folder, or a pipeline.

    Args:
      target: what `bushel inspect` takes: a path, a pattern or a URL, or a pipeline such as "train.py:make_dataset".
      storage_options: options of the store that holds the files.
      scan: whether to read all of it. Otherwise metadata and a few records are read.
      arguments: of the script that the target names.
    """
    if is_python_target(target) or is_script(target) or arguments:
        return inspect_pipeline(load_target(target, arguments=arguments), show_target(target, arguments))
    path, given = expand_path(target), dict(storage_options) if storage_options else None
    facts = Facts(redact.show(path), "")
    kind = find_kind(path, given)
    if kind is not None:
        return episode_formats.inspect_episodes(facts, kind, path, given, scan)
    if _has_file(path, MANIFEST, given):
        return _inspect_saved(facts, path, given, scan)
    if _has_file(path, "dataset_info.json", given) and not _has_file(path, HUGGING_FACE, given):
        return _inspect_tfds(facts, path, given, scan)
    files = _find_files(path, given)
    if files == [path] and not is_url(path) and not os.path.exists(path):
        raise FileNotFoundError(f"{facts.target} does not exist. {_TARGETS}")
    return _inspect_files(facts, files, given, scan)


def inspect_pipeline(given: Any, name: str = "") -> Facts:
    """The steps of a pipeline. One element is read where shapes are not known otherwise."""
    dataset = as_dataset(given)
    facts = Facts(name or type(given).__name__, "pipeline", unit="elements")
    described = dataset.describe() if hasattr(dataset, "describe") else show.describe(dataset._node)
    facts.steps = [dict(zip(("step", "length", "element"), step)) for step in described.steps]
    length = facts.steps[-1]["length"].replace(",", "")
    facts.count = int(length) if length.isdecimal() else None
    if length == "endless":
        facts.details["length"] = "endless"
    return facts


def _has_file(path: str, name: str, options: Options | None) -> bool:
    return Listing(path, options).has(name)


def _inspect_saved(facts: Facts, path: str, options: Options | None, scan: bool) -> Facts:
    file = file_access.open_file(join_path(path, MANIFEST), options)
    manifest = Manifest.parse(file.read(0, file.size), redact.show(join_path(path, MANIFEST)))
    _inspect_files(facts, [join_path(path, name) for name in manifest.files], options, scan)
    inner, facts.format, facts.unit = facts.format, "saved by ds.save", "elements"
    facts.details |= {"files are": inner, "pipeline": manifest.identity or "not known"}
    for file, count in zip(facts.files, manifest.counts):
        if file.records is not None and file.records != count and not file.error:
            file.error = f"{file.name} should have {count:,} elements, as {MANIFEST} says; it has {file.records:,}."
            facts.damage.append(file.error)
    facts.count = sum(manifest.counts)
    if not facts.damage:
        from bushel._src.sources.saved_elements import SavedDataSource

        source = SavedDataSource(path, storage_options=dict(options) if options else None)
        facts.schema = list(list_columns(source[0])) if len(source) else []
        facts.details.pop("records are", None)
    return facts


def _inspect_tfds(facts: Facts, path: str, options: Options | None, scan: bool) -> Facts:
    from bushel._src.sources.tfds_json import read_json, shard_lengths, shard_names, split_entries

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
    if find_format(path) is not None or not is_folder(path, options):
        return file_access.find_files(path, options)
    return find_folder_files(path, options)[1]


def _inspect_files(
    facts: Facts, paths: list[str], options: Options | None, scan: bool, *, ending: str | None = None
) -> Facts:
    kinds = {find_format(ending or path): path for path in paths}
    if len(kinds) > 1:
        named = ", ".join(sorted("unknown" if kind is None else kind.name for kind in kinds))
        raise ValueError(f"{facts.target} has files of several formats ({named}): inspect them one by one.")
    ((found, first),) = kinds.items()
    if found is None:
        if is_whole_file(first):
            facts.format = "one file per record"
            return record_formats.inspect_whole_files(facts, paths, options)
        if is_web(first):
            raise explain_web_folder(first)
        if is_url(first) and not file_exists(first, options):
            raise FileNotFoundError(f"{redact.show(first)} does not exist. {_TARGETS}")
        raise ValueError(
            f"Bushel does not know the format of {redact.show(first)}: it ends in none of "
            f"{', '.join(sorted(list_endings(readable=False)))}."
        )
    facts.format = found.name
    if found.source is None:
        return record_formats.inspect_streams(facts, paths, options, scan)
    if is_array_file(found):
        return array_formats.inspect_arrays(facts, paths, options, scan)
    inspect = _BY_FORMAT.get(found.name)
    if inspect is not None:
        return inspect(facts, paths, options, scan)
    return record_formats.inspect_records(facts, paths, found.load_source, options, scan)


_BY_FORMAT = {
    "Parquet": array_formats.inspect_parquet,
    "Arrow": array_formats.inspect_tables,
    "Lance": array_formats.inspect_tables,
    "HDF5": array_formats.inspect_stores,
    "Zarr": array_formats.inspect_stores,
}
"""What describes the files of a format. The others are files of records."""
