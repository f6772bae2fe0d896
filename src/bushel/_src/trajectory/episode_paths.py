"""Robot data sets by path: the format of the episodes at a path or URL, and the builder that reads them.

`episode_formats.py` opens a data set whose format is known.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from typing import Any

from bushel._src.base import checks, redact
from bushel._src.base.errors import DamagedFile
from bushel._src.sources import file_access
from bushel._src.sources.folder_listing import Listing, explain_web_folder, file_exists, is_web
from bushel._src.sources.optional_packages import import_package
from bushel._src.sources.output_folders import join_path
from bushel._src.sources.paths import Options, expand_path, is_url
from bushel._src.sources.tfds_json import read_json
from bushel._src.trajectory.episode_builder import EpisodeBuilder
from bushel._src.trajectory.episode_formats import FORMATS, EpisodeFormat, open_episodes

_HDF5 = (".hdf5", ".h5")
_INFO = "dataset_info.json"


def find_kind(path: str, options: Options | None = None) -> str | None:
    """The format of the robot episodes at a path or URL; None if there is something else.

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
    """The format of a data set that must be one of episodes, by the names of its files alone."""
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
    """The builder of the data set of a format at a path or URL: a folder, the folder of one version, or a file."""
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
    """Whether an `.npz` file is an episode. This reads the names of its arrays only."""
    try:
        with file_access.open_stream(path, options) as stream, zipfile.ZipFile(stream) as file:
            return not {"action.npy", "actions.npy"}.isdisjoint(file.namelist())
    except (zipfile.BadZipFile, FileNotFoundError):
        return False


def _has_steps(path: str, options: Options | None) -> bool:
    """Whether the `features.json` of a TFDS data set describes episodes."""
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
