"""`inspect_target`: finds out what a target is, and lets its format describe it; data sets of robot episodes here.

The episodes are RLDS, LeRobot, HDF5 (robomimic, ALOHA) or npz. Files are described in `file_facts.py`.
"""

from __future__ import annotations

import collections
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.shown_text import Progress
from bushel._src.graph import graph_text
from bushel._src.inspection import file_facts
from bushel._src.inspection.facts import EntryFacts, Facts, list_columns
from bushel._src.inspection.file_facts import READ_ERRORS, measure_file, measure_store
from bushel._src.sources import file_access
from bushel._src.sources.folders import Listing, explain_web_folder, file_exists, is_folder, is_web, join_path
from bushel._src.sources.paths import Options, expand_path, is_url
from bushel._src.sources.saved_elements import MANIFEST, Manifest
from bushel._src.sources.source_by_path import (
    HUGGING_FACE,
    find_folder_files,
    find_format,
    is_array_file,
    is_whole_file,
    list_endings,
)
from bushel._src.sources.tfds import shard_names
from bushel._src.trajectory.encoded_images import Encoded
from bushel._src.trajectory.episode_builder import find_kind, open_path
from bushel._src.trajectory.lerobot.dataset_folder import LeRobotFolder
from bushel._src.view.scripts import is_python_target, is_script, show_target
from bushel._src.view.targets import as_dataset, load_target

NAMES = {
    "rlds": "RLDS",
    "lerobot": "LeRobot",
    "robomimic": "robomimic (HDF5)",
    "aloha": "ALOHA (HDF5)",
    "npz": "npz episodes",
}
_SAMPLE = 20
"""How many episodes are read without --scan."""
_MOST_DAMAGE = 20
_TEXTS = 5


def inspect_episodes(facts: Facts, kind: str, path: str, options: Options | None, scan: bool) -> Facts:
    """Fill in the facts of a data set of episodes."""
    facts.format, facts.unit = NAMES[kind], "episodes"
    if kind == "lerobot":
        return _inspect_lerobot(facts, path, options, scan)
    builder = open_path(path, kind, options)
    facts.splits = dict(builder.splits)
    facts.count = sum(builder.splits.values())
    if builder.fps:
        facts.details["steps per second"] = builder.fps
    if kind == "rlds":
        _describe_rlds(facts, builder, options)
    else:
        _describe_files(facts, path, options)
    first, count = next(iter(facts.splits.items()))
    try:
        # Of an RLDS data set, only the files of these episodes are opened.
        episodes = builder.episodes("all" if scan or facts.count <= _SAMPLE else f"{first}[:{min(count, _SAMPLE)}]")
    except READ_ERRORS as error:
        facts.damage.append(str(error))
        return facts
    _read_episodes(facts, episodes, facts.count)
    return facts


def _describe_rlds(facts: Facts, builder: Any, options: Options | None) -> None:
    facts.details |= {"name": builder.name, "version": builder.version, "files are": builder.file_format}
    facts.details["checksums"] = "of each record, compared with --scan"
    for entry in builder._entries.values():
        for name in shard_names(builder.name, entry, builder.file_format):
            facts.files.append(measure_file(f"{builder.folder}/{name}", options))
    facts.damage += [file.error for file in facts.files if file.error]
    facts.size_bytes = sum(file.size_bytes or 0 for file in facts.files)
    facts.schema = [
        EntryFacts(leaf.path, _name_type(leaf), "one per episode" if leaf in builder.features.once else "")
        for leaf in (*builder.features.steps, *builder.features.once)
    ]


def _name_type(leaf: Any) -> str:
    shape = f"{list(leaf.shape)}" if leaf.shape else ""
    return {"image": f"image{shape}", "strings": "text"}.get(leaf.kind, f"{leaf.dtype or leaf.kind}{shape}")


def _describe_files(facts: Facts, path: str, options: Options | None) -> None:
    facts.files = [measure_store(path, options)]
    facts.size_bytes = facts.files[0].size_bytes


def _read_episodes(facts: Facts, episodes: Any, total: int) -> None:
    """Read episodes without their images: lengths, keys, instructions and ranges of numbers."""
    count = len(episodes)
    lengths: list[int] = []
    texts: collections.Counter[str] = collections.Counter()
    ranges: dict[str, list[Any]] = {}
    with Progress("reading episodes", count, unit="episodes", delay_s=1) as bar:
        for place in range(count):
            try:
                episode = episodes[place]
            except READ_ERRORS as error:
                if len(facts.damage) < _MOST_DAMAGE:
                    facts.damage.append(str(error))
                continue
            finally:
                bar.show(place + 1)
            lengths.append(len(episode["_len"]))
            texts.update(set(_find_texts(episode)))
            if not facts.schema:
                facts.schema = list(_list_entries(episode))
            for name, values in _list_numbers(episode):
                ranges.setdefault(name, []).append((values.min(), values.max()))
    _describe_lengths(facts, lengths, is_whole=count == total)
    _describe_texts(facts, texts)
    for column in facts.schema:
        if column.name in ranges and not column.note:
            low, high = np.array(ranges[column.name]).T
            column.note = f"{low.min():.4g} to {high.max():.4g}"
    if count < total:
        facts.notes.append(f"Lengths, texts and ranges are of the first {count} episodes: --scan reads all of them.")


def _describe_lengths(facts: Facts, lengths: list[int], *, is_whole: bool) -> None:
    if not lengths:
        return
    if is_whole:
        facts.details["steps"] = sum(lengths)
    facts.details["steps of an episode"] = f"{min(lengths):,} to {max(lengths):,}, {np.mean(lengths):,.1f} on average"
    facts.add_histogram(f"steps of an episode ({len(lengths):,} episodes)", lengths)


def _describe_texts(facts: Facts, texts: collections.Counter[str]) -> None:
    if texts:
        facts.details["instructions"] = len(texts)
        shown = [f"{text!r} ({count:,})" for text, count in texts.most_common(_TEXTS)]
        facts.details["most frequent"] = ", ".join(shown)


def _find_texts(episode: Mapping[str, Any]) -> Iterator[str]:
    for name, values in _list_leaves(episode):
        if "language" in name or "instruction" in name:
            for value in list(values[:1]):
                text = value.decode(errors="replace") if isinstance(value, bytes) else value
                if isinstance(text, str) and text:
                    yield text


def _list_leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if not str(key).startswith("_"):
                yield from _list_leaves(value, f"{path}/{key}" if path else str(key))
    else:
        yield path, tree


def _list_numbers(episode: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    for name, values in _list_leaves(episode):
        if isinstance(values, np.ndarray) and values.dtype.kind in "iuf" and values.size:
            yield name, values


def _list_entries(episode: Mapping[str, Any]) -> Iterator[EntryFacts]:
    for name, values in _list_leaves(episode):
        if isinstance(values, np.ndarray) and values.dtype == object:
            first = values[0] if len(values) else None
            kind = "image" if isinstance(first, Encoded) else "text" if isinstance(first, (bytes, str)) else "image"
            yield EntryFacts(name, kind)
        elif hasattr(values, "dtype"):
            yield EntryFacts(name, f"{values.dtype}{list(values.shape[1:]) or ''}")


def _inspect_lerobot(facts: Facts, path: str, options: Options | None, scan: bool) -> Facts:
    """LeRobot data sets say all of this in their folder `meta`. With `scan` rows and videos are read, too."""
    folder = LeRobotFolder(path, storage_options=options)
    info = folder.info
    facts.details |= {
        "version": info.get("codebase_version", ""),
        "robot": info.get("robot_type") or "not named",
        "steps per second": folder.fps,
    }
    for feature in folder.features.values():
        shape = f"{list(feature.shape)}" if feature.shape not in ((), (1,)) else ""
        facts.schema.append(EntryFacts(feature.name, f"{feature.dtype}{shape}"))
    try:
        stated = folder.episode_facts
        facts.splits = {split: len(own) for split, own in folder.splits.items()}
        lengths = [int(entry["length"]) for entry in stated.values() if entry.get("length") is not None]
        facts.count = len(stated)
        _describe_lengths(facts, lengths, is_whole=True)
        tasks = list(folder.tasks.values())
        facts.details["instructions"] = len(tasks)
        facts.details["some of them"] = ", ".join(map(repr, tasks[:_TEXTS]))
    except READ_ERRORS as error:
        facts.damage.append(str(error))
        facts.count = info.get("total_episodes")
    _list_lerobot_files(facts, folder, options)
    if scan:
        _scan_lerobot(facts, path, options)
    else:
        facts.notes.append("This is what the folder meta says: --scan reads the rows and the indices of the videos.")
    return facts


def _list_lerobot_files(facts: Facts, folder: LeRobotFolder, options: Options | None) -> None:
    try:
        names: Iterable[str] = [*folder.data_files.values(), *dict.fromkeys(folder._video_names())]
        facts.files = [measure_file(folder.address(name), options) for name in names]
    except READ_ERRORS as error:
        facts.damage.append(str(error))
        return
    facts.damage += [file.error for file in facts.files if file.error]
    facts.size_bytes = sum(file.size_bytes or 0 for file in facts.files)
    facts.details["videos"] = sum(file.name.endswith(".mp4") for file in facts.files)


def _scan_lerobot(facts: Facts, path: str, options: Options | None) -> None:
    """Read all rows, and find the frames of each episode in the videos."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            builder = open_path(path, "lerobot", options, {"on_error": "drop"})
        facts.damage += [str(warning.message) for warning in caught][:_MOST_DAMAGE]
        found = len(builder.episodes("all"))
        if facts.count is not None and found != facts.count:
            facts.damage.append(f"{facts.count - found:,} of {facts.count:,} episodes cannot be read in full.")
        _read_episodes(facts, builder.episodes("all"), found)
    except READ_ERRORS as error:
        facts.damage.append(str(error))


_TARGETS = "Name a file, a folder, a pattern such as 'data/*.parquet', or a dataset in a script: train.py:make_dataset."


def inspect_target(
    target: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    scan: bool = False,
    arguments: Sequence[str] = (),
) -> Facts:
    """Return what is in a file, a pattern, a folder, or a pipeline.

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
        return inspect_episodes(facts, kind, path, given, scan)
    if _has_file(path, MANIFEST, given):
        return _inspect_saved(facts, path, given, scan)
    if _has_file(path, "dataset_info.json", given) and not _has_file(path, HUGGING_FACE, given):
        return _inspect_tfds(facts, path, given, scan)
    files = _find_files(path, given)
    if files == [path] and not is_url(path) and not os.path.exists(path):
        raise FileNotFoundError(f"{facts.target} does not exist. {_TARGETS}")
    return _inspect_files(facts, files, given, scan)


def inspect_pipeline(given: Any, name: str = "") -> Facts:
    """Return the steps of a pipeline. One element is read where shapes are not known otherwise."""
    dataset = as_dataset(given)
    facts = Facts(name or type(given).__name__, "pipeline", unit="elements")
    described = dataset.describe() if hasattr(dataset, "describe") else graph_text.describe(dataset._node)
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
    from bushel._src.sources.tfds import read_json, shard_lengths, shard_names, split_entries

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
    """Return the files of a path: itself, what a pattern finds, or the files of a folder that have a format we know."""
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
            return file_facts.inspect_whole_files(facts, paths, options)
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
        return file_facts.inspect_streams(facts, paths, options, scan)
    if is_array_file(found):
        return file_facts.inspect_arrays(facts, paths, options, scan)
    inspect = _BY_FORMAT.get(found.name)
    if inspect is not None:
        return inspect(facts, paths, options, scan)
    return file_facts.inspect_records(facts, paths, found.load_source, options, scan)


_BY_FORMAT = {
    "Parquet": file_facts.inspect_parquet,
    "Arrow": file_facts.inspect_tables,
    "Lance": file_facts.inspect_tables,
    "HDF5": file_facts.inspect_stores,
    "Zarr": file_facts.inspect_stores,
}
"""What describes the files of a format. The others are files of records."""
