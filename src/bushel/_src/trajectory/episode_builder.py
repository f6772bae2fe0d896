"""`EpisodeBuilder`: a data set of episodes, whatever its format; and how to open one, by format or by path.

Its splits have the syntax and the rounding of TFDS, such as "train[:95%]".
"""

from __future__ import annotations

import abc
import importlib
import inspect
import json
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import numpy as np

from bushel._src.base import checks, redact
from bushel._src.base.errors import DamagedFile
from bushel._src.base.hints import explains_arguments
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import public
from bushel._src.base.state_names import overridable
from bushel._src.sources import file_access
from bushel._src.sources.folders import Listing, explain_web_folder, file_exists, is_web, join_path
from bushel._src.sources.paths import Options, Path, expand_path, is_url
from bushel._src.sources.tfds import read_json
from bushel._src.trajectory.config_values import as_mapping, refuse_unknown
from bushel._src.trajectory.encoded_images import ImageFiles


class EpisodeSource(Protocol):
    """Raw trajectories by position: trees of arrays with a leading axis of steps, and handles in place of images."""

    @property
    def parts(self) -> ImageFiles:
        """The files that hold the images."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]: ...

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """Return the trajectories at `indices`."""
        ...

    def describe(self, index: int) -> str:
        """Return the episode and its file, for messages."""
        ...

    def fingerprint(self) -> Any:
        """Return plain data that differ for sources that differ."""
        ...


@public("bushel.trajectory")
class EpisodeBuilder(abc.ABC):
    """A data set of episodes on disk or in a store.

    A raw trajectory has its observations under "observation" and its actions under "action". If the format has
    instructions, they are under "language_instruction", one for each step. Facts about the whole episode are under
    "traj_metadata", repeated for each step.
    """

    name: str
    """The name of the data set, for messages."""
    splits: Mapping[str, int]
    """The number of episodes of each split."""
    fps: float | None = None
    """Steps per second, if the files say it."""

    @abc.abstractmethod
    def episodes(self, split: str = "all") -> EpisodeSource:
        """Return the episodes of a split: "train", "all", "train[:95%]", "train[10:20]", "train+val" ..."""

    @abc.abstractmethod
    def positions(self, split: str) -> np.ndarray:
        """Return the positions of the episodes of a split among all episodes: int64."""

    @overridable
    def default_splits(self) -> tuple[str, str]:
        """Return the splits for training and for validation, if the user names none."""
        return ("train", "val") if "val" in self.splits else ("train[:95%]", "train[95%:]")


_SPLIT = re.compile(r"(?P<name>[\w-]+)(\[(?P<part>[\w%:.-]+)\])?")
_BOUND = re.compile(r"((?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?")

Range = tuple[str, int, int]


def parse_split(split: str, shards: Mapping[str, Sequence[int]]) -> list[Range]:
    """Return the ranges of episodes that a text names: tuples (split, first episode, last episode + 1).

    Args:
      split: names of splits, or "all"; each may have a part in brackets, in episodes, percents or shards ("[:95%]",
        "[10:20]", "[-5%:]", "[0shard]"); several are joined with "+". Percents are rounded to the closest episode.
      shards: the number of episodes of each shard, for each split.

    >>> parse_split("train[:95%]+val", {"train": [50, 51], "val": [7]})
    [('train', 0, 96), ('val', 0, 7)]
    """
    if not isinstance(split, str):
        raise TypeError(f"A split must be a text such as 'train' or 'train[:95%]', got {split!r}.")
    terms = re.split(r"\s*\+\s*", split)
    ranges = [part for term in terms for part in _parse_term(term, split, shards) if part[1] < part[2]]
    if not ranges:
        counts = ", ".join(f"{name!r} has {sum(lengths)}" for name, lengths in shards.items())
        raise ValueError(
            f"The split {split!r} names no episodes ({counts}). Choose a larger part: percents are rounded to the "
            "closest number of episodes."
        )
    return ranges


def _parse_term(term: str, split: str, shards: Mapping[str, Sequence[int]]) -> list[Range]:
    match = _SPLIT.fullmatch(term)
    if match is None:
        raise _make_error(split)
    name, part = match["name"], match["part"]
    if name == "all" and "all" not in shards:
        if part is not None:
            raise ValueError(
                f"{split!r}: a part of 'all' is not possible. Name a part of each split: {_split_each(part, shards)!r}."
            )
        return [(each, 0, sum(lengths)) for each, lengths in shards.items()]
    if name not in shards:
        raise ValueError(f"There is no split {name!r}; there are {', '.join(map(repr, shards))}, and 'all'.")
    total = sum(shards[name])
    if part is None:
        return [(name, 0, total)]
    low, high = _parse_bounds(part, split, shards[name])
    if max(abs(low), abs(high)) > total:
        raise ValueError(
            f"{split!r}: the split {name!r} has {total} episodes; there is no part [{low}:{high}] of them."
        )
    return [(name, low + total * (low < 0), high + total * (high < 0))]


def _parse_bounds(part: str, split: str, lengths: Sequence[int]) -> tuple[int, int]:
    """The two ends of a part, in episodes. Negative ends count from the end of the split, as in TFDS."""
    matches = [_BOUND.fullmatch(text) for text in part.split(":")]
    ends = [match for match in matches if match is not None]
    if len(ends) != len(matches) or len(ends) > 2 or not any(match[0] for match in ends):
        raise _make_error(split)
    unit = next((match["unit"] for match in ends if match["unit"]), None)
    try:
        values = [None if not match["value"] else (float if unit == "%" else int)(match["value"]) for match in ends]
    except ValueError:
        raise _make_error(split) from None
    if len(values) == 1:
        if unit != "shard":
            raise ValueError(f"{split!r}: one number names a shard, as in [0shard]; a part has a colon, as in [10:20].")
        values.append(int(values[0] or 0) + 1)
    total = sum(lengths)
    low, high = values
    if unit == "%":
        if any(value is not None and abs(value) > 100 for value in values):
            raise ValueError(f"{split!r}: percents lie between -100 and 100.")
        low, high = (None if value is None else round(value * total / 100.0) for value in values)
    elif unit == "shard":
        low = None if low is None else sum(lengths[: int(low)])
        if high is not None:
            high = sum(lengths[: int(high) if high > 0 else len(lengths) + int(high)])
    return (0 if low is None else int(low)), (total if high is None else int(high))


def _make_error(split: str) -> ValueError:
    return ValueError(
        f"The split {split!r} cannot be read. Splits are written 'train', 'train[:95%]', 'train[10:20]', 'train+val' "
        "or 'all'."
    )


def _split_each(part: str, shards: Mapping[str, Sequence[int]]) -> str:
    return "+".join(f"{name}[{part}]" for name in shards)


_OPENERS = {
    "rlds": "bushel._src.trajectory.rlds.reader:RLDSBuilder",
    "robomimic": "bushel._src.trajectory.array_episodes:open_robomimic",
    "aloha": "bushel._src.trajectory.array_episodes:open_aloha",
    "npz": "bushel._src.trajectory.array_episodes:open_npz",
    "lerobot": "bushel._src.trajectory.lerobot.reader:open_lerobot",
}
"""Functions of (name, data_dir, storage_options) and options of the format. They are imported when one is needed."""

EpisodeFormat = Literal["rlds", "robomimic", "aloha", "npz", "lerobot"]
FORMATS: tuple[EpisodeFormat, ...] = get_args(EpisodeFormat)
"""The names of the formats."""


@public("bushel.trajectory")
@explains_arguments("Write `open_episodes(name, data_dir)`: the data set `name` in the folder `data_dir`.")
def open_episodes(
    name: str,
    data_dir: Path,
    *,
    format: EpisodeFormat = "rlds",
    storage_options: Options | None = None,
    format_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> EpisodeBuilder:
    """Open a data set of episodes: its splits, and its raw trajectories at any position.

    >>> import os, tempfile, numpy as np
    >>> folder = tempfile.mkdtemp()
    >>> np.savez(os.path.join(folder, "0.npz"), state=np.zeros((5, 3)), action=np.zeros((5, 2)))
    >>> builder = open_episodes("mine", folder, format="npz")
    >>> builder.episodes("train")[0]["observation"]["state"].shape
    (5, 3)

    Args:
      name: the name of the data set.
      data_dir: a path or URL. The data set lies in data_dir/name, or is `data_dir` itself.
      format: the format: "rlds", "robomimic", "aloha", "npz" or "lerobot".
      storage_options: the options of the store.
      format_options: the options of the format: the other arguments of the function that opens it.
      cache_dir: the folder for what some formats keep between runs; by default the cache folder of Bushel.
    """
    check_format(format, name)
    opener = _load_opener(format)
    given = dict(as_mapping(format_options or {}, f"format_options of {name}"))
    known = [argument for argument in inspect.signature(opener).parameters if argument not in _COMMON]
    if given and not known:
        raise ValueError(f"The format {format!r} of data set {name!r} has no format_options; got {sorted(given)}.")
    refuse_unknown(given, known, f"The format {format!r} of data set {name!r}", "option")
    if "cache_dir" in known:
        given = {"cache_dir": cache_dir, **given}
    return opener(name, data_dir, storage_options=storage_options, **given)


_COMMON = ("name", "data_dir", "storage_options")


def check_format(format: Any, name: str) -> None:
    """Raise ValueError if there is no such format."""
    checks.choice(format, FORMATS, f"Data set {name!r}: format")


def _load_opener(format: str) -> Any:
    module, _, function = _OPENERS[format].partition(":")
    return getattr(importlib.import_module(module), function)


_HDF5 = (".hdf5", ".h5")
_INFO = "dataset_info.json"


def find_kind(path: str, options: Options | None = None) -> str | None:
    """Return the format of the robot episodes at a path or URL; None if there is something else.

    This reads names of files, and the description or the names in the first file.

    Raises:
      PermissionError: if files could not be looked at, and what could be looked at is no data set of episodes.
    """
    place = expand_path(path).rstrip("/")
    if redact.remove_query(place).lower().endswith(_HDF5) and not os.path.isdir(place):
        return _find_hdf5_kind(place, options) if file_exists(place, options) else None
    if is_web(place) and "?" in place:  # names of files below it cannot be made
        return None
    folder = Listing(place, options)
    if folder.has("meta/info.json"):
        return "lerobot"
    if folder.has(_INFO):
        return "rlds" if _has_steps(join_path(place, "features.json"), options) else None
    kind = _find_kind_by_listing(folder)
    if kind is None and folder.refusal is not None and not folder.names() and not file_exists(place, options):
        raise folder.refusal
    return kind


def detect_kind(path: str, options: Options | None = None) -> str:
    """Return the format of a data set that must be one of episodes, by the names of its files alone."""
    place = expand_path(path).rstrip("/")
    if redact.remove_query(place).lower().endswith(_HDF5):
        return "robomimic"
    folder = Listing(place, options)
    if folder.has("meta/info.json"):
        return "lerobot"
    if folder.has(_INFO) or any(name.endswith(f"/{_INFO}") for name in folder.names(2)):
        return "rlds"
    for kind, endings in (("aloha", _HDF5), ("npz", (".npz",))):
        if folder.find(*endings):
            return kind
    if folder.refusal is not None:
        raise folder.refusal
    if is_web(place):
        raise explain_web_folder(place)
    raise ValueError(f"{redact.show(path)} is no data set of a known format. Name its format: {', '.join(FORMATS)}.")


def open_path(
    path: str, kind: str, options: Options | None = None, format_options: Mapping[str, Any] | None = None
) -> EpisodeBuilder:
    """Return the builder of the data set of a format at a path or URL: a folder, the folder of one version, or a
    file.
    """
    place = expand_path(path).rstrip("/")
    above, _, name = redact.remove_query(place).rpartition("/")
    if kind == "rlds" and file_exists(join_path(place, _INFO), options):
        name, above = read_json(join_path(place, _INFO), options)["name"].text(), place
    elif name.lower().endswith(_HDF5):
        above = place  # one file, with the query of its address
    elif kind == "robomimic" and len(files := Listing(place, options).find(*_HDF5)) == 1:
        above = join_path(place, files[0])
    format = checks.choice(kind, EpisodeFormat, "format")
    return open_episodes(name, above or ".", format=format, storage_options=options, format_options=format_options)


def _find_kind_by_listing(folder: Listing) -> str | None:
    if files := folder.find(".npz"):
        return "npz" if _has_actions(join_path(folder.place, files[0]), folder.options) else None
    if files := folder.find(*_HDF5):
        kind = _find_hdf5_kind(join_path(folder.place, files[0]), folder.options)
        # Each robomimic file is a data set of its own.
        return kind if kind == "aloha" or len(files) == 1 else None
    # data_dir/name has a folder for each version, or one for each config with its versions.
    described = [name for name in folder.names(2) if name.endswith(f"/{_INFO}")]
    features = [join_path(folder.place, name.removesuffix(_INFO) + "features.json") for name in described]
    return "rlds" if any(_has_steps(path, folder.options) for path in features) else None


def _has_actions(path: str, options: Options | None) -> bool:
    """Return whether an `.npz` file is an episode. This reads the names of its arrays only."""
    try:
        with file_access.open_stream(path, options) as stream, zipfile.ZipFile(stream) as file:
            return not {"action.npy", "actions.npy"}.isdisjoint(file.namelist())
    except (zipfile.BadZipFile, FileNotFoundError):
        return False


def _has_steps(path: str, options: Options | None) -> bool:
    """Return whether the `features.json` of a TFDS data set describes episodes."""
    try:
        file = file_access.open_file(path, options)
        return "steps" in json.loads(file.read(0, file.size))["featuresDict"]["features"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False


def _find_hdf5_kind(path: str, options: Options | None) -> str | None:
    h5py: Any = import_package("h5py", "hdf5", "HDF5 files")
    place = file_access.open_stream(path, options) if is_url(path) else path
    try:
        with h5py.File(place, "r") as file:
            data = file.get("data")
            if isinstance(data, h5py.Group) and any(name.startswith("demo") for name in data):
                return "robomimic"
            if "action" in file and isinstance(file.get("observations"), h5py.Group):
                return "aloha"
    except (OSError, RuntimeError, KeyError, DamagedFile):  # damaged: whoever reads it says so
        return None
    return None
