"""Data sets of robot episodes: RLDS, LeRobot, HDF5 (robomimic, ALOHA) and npz."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from bushel._src.base.progress import Progress
from bushel._src.inspection.array_formats import measure_store
from bushel._src.inspection.facts import Column, Facts
from bushel._src.inspection.record_formats import READ_ERRORS, measure_file
from bushel._src.sources.paths import Options
from bushel._src.sources.tfds_json import shard_names
from bushel._src.trajectory.encoded_images import Encoded
from bushel._src.trajectory.episode_paths import open_path
from bushel._src.trajectory.lerobot.dataset_folder import LeRobotFolder

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
    """Fills in the facts of a data set of episodes."""
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
        Column(leaf.path, _name_type(leaf), "one per episode" if leaf in builder.features.once else "")
        for leaf in (*builder.features.steps, *builder.features.once)
    ]


def _name_type(leaf: Any) -> str:
    shape = f"{list(leaf.shape)}" if leaf.shape else ""
    return {"image": f"image{shape}", "strings": "text"}.get(leaf.kind, f"{leaf.dtype or leaf.kind}{shape}")


def _describe_files(facts: Facts, path: str, options: Options | None) -> None:
    facts.files = [measure_store(path, options)]
    facts.size_bytes = facts.files[0].size_bytes


def _read_episodes(facts: Facts, episodes: Any, total: int) -> None:
    """Reads episodes without their images: lengths, keys, instructions and ranges of numbers."""
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


def _list_entries(episode: Mapping[str, Any]) -> Iterator[Column]:
    for name, values in _list_leaves(episode):
        if isinstance(values, np.ndarray) and values.dtype == object:
            first = values[0] if len(values) else None
            kind = "image" if isinstance(first, Encoded) else "text" if isinstance(first, (bytes, str)) else "image"
            yield Column(name, kind)
        elif hasattr(values, "dtype"):
            yield Column(name, f"{values.dtype}{list(values.shape[1:]) or ''}")


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
        facts.schema.append(Column(feature.name, f"{feature.dtype}{shape}"))
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
    """Reads all rows, and finds the frames of each episode in the videos."""
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
