"""Files and folders that the viewer opens: sources, robot data sets, folders of pictures."""

from __future__ import annotations

import glob
import json
import os
import zipfile
from pathlib import Path
from typing import Any

from bushel import sources
from bushel.sources.optional_packages import import_package
from bushel.sources.saved_elements import MANIFEST
from bushel.sources.tfds import TFDSDataSource
from bushel.sources.whole_files import FileDataSource
from bushel.trajectory.episode_builder import EpisodeBuilder
from bushel.trajectory.episode_formats import open_episodes

_WHOLE_FILES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".wav", ".flac", ".mp3", ".mp4", ".json")
_RECORD_FILES = (".array_record", ".tfrecord", ".bagz", ".parquet", ".arrow", ".txt", ".jsonl", ".csv")


def open_path(path: str, *, split: str | None = None, options: dict[str, Any] | None = None) -> Any:
    """The source of a file or folder, or the `EpisodeBuilder` of a robot data set."""
    episodes = _open_episodes(path, options)
    if episodes is not None:
        return episodes
    folder = Path(path)
    if split is not None and (folder / "dataset_info.json").is_file():
        return TFDSDataSource(path, split, storage_options=options)
    if folder.is_dir() and not any((folder / name).exists() for name in ("dataset_info.json", MANIFEST)):
        pattern = _find_pattern(folder)
        if pattern is not None:
            path = pattern
    if path.lower().endswith(_WHOLE_FILES):
        return FileDataSource(path, storage_options=options)
    return sources.open(path, storage_options=options)


def _find_pattern(folder: Path) -> str | None:
    """The pattern of the files in a folder, if all that Bushel reads have the same ending."""
    with os.scandir(folder) as entries:
        endings = {Path(entry.name).suffix.lower() for entry in entries if not entry.name.startswith(".")}
    found = sorted(endings.intersection((*_WHOLE_FILES, *_RECORD_FILES)))
    return f"{glob.escape(str(folder))}/*{found[0]}" if len(found) == 1 else None


def _open_episodes(path: str, options: dict[str, Any] | None) -> EpisodeBuilder | None:
    """The builder of a robot data set; None for any other path."""
    kind = find_episode_kind(path)
    if kind is None:
        return None
    place = Path(os.path.abspath(path))
    name, above = place.name, place.parent
    if kind == "rlds" and (place / "dataset_info.json").is_file():  # the folder of one version
        name, above = str(json.loads((place / "dataset_info.json").read_text())["name"]), place
    return open_episodes(name, str(above), kind=kind, storage_options=options)


def find_episode_kind(path: str) -> str | None:
    """The format of a folder or file of robot episodes, by its files; None if it is something else."""
    place = Path(path)
    if (place / "meta" / "info.json").is_file():
        return "lerobot"
    described = [place / "dataset_info.json", *sorted(place.glob("*/dataset_info.json"))] if place.is_dir() else []
    if any("steps" in _read_feature_names(info.parent / "features.json") for info in described if info.is_file()):
        return "rlds"
    if place.is_dir() and any(_has_actions(file) for file in _find_first(place, ".npz")):
        return "npz"
    files = [place] if place.is_file() else _find_first(place, ".hdf5")
    return next((_find_hdf5_kind(file) for file in files if file.suffix in (".hdf5", ".h5")), None)


def _find_first(folder: Path, ending: str) -> list[Path]:
    """The first file with this ending, in the folder or in one of its folders, which are splits."""
    return (sorted(folder.glob(f"*{ending}")) or sorted(folder.glob(f"*/*{ending}")))[:1]


def _has_actions(path: Path) -> bool:
    """Whether an `.npz` file is an episode. This reads the names of its arrays only."""
    try:
        with zipfile.ZipFile(path) as file:
            return "action.npy" in file.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _read_feature_names(path: Path) -> Any:
    try:
        return json.loads(path.read_text())["featuresDict"]["features"]
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _find_hdf5_kind(path: Path) -> str | None:
    h5py: Any = import_package("h5py", "hdf5", "HDF5 files")
    with h5py.File(path, "r") as file:
        data = file.get("data")
        if isinstance(data, h5py.Group) and any(name.startswith("demo") for name in data):
            return "robomimic"
        if "action" in file and isinstance(file.get("observations"), h5py.Group):
            return "aloha"
    return None
