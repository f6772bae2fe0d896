"""Finds the folder of a prepared TFDS data set: `data_dir/name[/config]/version`, by default the newest version."""

from __future__ import annotations

import contextlib
import glob
import re

from bushel._src.base import redact
from bushel._src.sources import file_access
from bushel._src.sources.paths import Options, Path, expand_path, is_url
from bushel._src.sources.tfds_json import read_json

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_INFO = "dataset_info.json"


def is_version(text: str) -> bool:
    """Whether a text has the form "1.0.0"."""
    return _VERSION.fullmatch(text) is not None


def find_folder(name: str, data_dir: Path, options: Options | None = None) -> str:
    """The folder of a data set: below `data_dir`, or `data_dir` itself.

    Args:
      name: "name", "name/config", with "/1.0.0" or ":1.0.0" after it for a version.
      data_dir: a path or URL.
      options: options of the store.
    """
    root = expand_path(data_dir).rstrip("/")
    plain, _, version = name.partition(":")
    parts = plain.strip("/").split("/")
    if not version and is_version(parts[-1]):
        version = parts.pop()
    if _has_info(root, options):
        return _check_folder(root, parts[0], version, options)
    base = "/".join([root, *parts])
    if version:
        if not _has_info(f"{base}/{version}", options):
            raise _make_error(name, f"{base}/{version}", _list_folders(base, "*", options))
        return f"{base}/{version}"
    versions = [entry for entry in _list_folders(base, "*", options) if is_version(entry)]
    if not versions and (config := _choose_config(name, base, options)):
        base = f"{base}/{config}"
        versions = [entry for entry in _list_folders(base, "*", options) if is_version(entry)]
    if not versions:
        raise _make_error(name, base, _list_folders(root, "*/*", options))
    return f"{base}/{max(versions, key=lambda text: [int(number) for number in text.split('.')])}"


def _check_folder(folder: str, name: str, version: str, options: Options | None) -> str:
    """Returns the folder after a check that it holds the named data set."""
    info = read_json(f"{folder}/{_INFO}", options)
    stored = info["name"].text(), info["version"].text() if "version" in info else ""
    if stored[0] != name or (version and stored[1] != version):
        wanted = f"{name} {version}".strip()
        raise ValueError(
            f"{redact.show(folder)} holds the data set {stored[0]} {stored[1]}, not {wanted}. "
            "Give the folder above it as data_dir."
        )
    return folder


def _choose_config(name: str, base: str, options: Options | None) -> str | None:
    """The default config of a data set, as TFDS has stored it, or its only config. None if it has no configs."""
    configs = [config for config in _list_folders(base, "*/*", options) if not config.startswith(".")]
    if len(configs) > 1:
        with contextlib.suppress(FileNotFoundError):
            default = read_json(f"{base}/.config/metadata.json", options)["defaultConfigName"]
            if default.text() not in configs:
                raise default.wrong(f"is none of the configs {', '.join(configs)}")
            return default.text()
        raise ValueError(
            f"{redact.show(base)} has several configs: {', '.join(configs)}. "
            f"Name one, as in {name + '/' + configs[0]!r}."
        )
    return configs[0] if configs else None


def _has_info(folder: str, options: Options | None) -> bool:
    try:
        file_access.open_file(f"{folder}/{_INFO}", options)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _list_folders(base: str, depth: str, options: Options | None) -> list[str]:
    """The names of the folders in `base` that hold a data set, `depth` ("*" or "*/*") levels down."""
    if not is_url(base):
        paths = glob.glob(f"{depth}/{_INFO}", root_dir=base)
    else:
        try:
            paths = [url.removeprefix(f"{base}/") for url in file_access.find_files(f"{base}/{depth}/{_INFO}", options)]
        except FileNotFoundError:
            return []
        except ValueError as error:  # a web server cannot list files
            raise ValueError(f"{error} Or name the version, as in 'name:1.0.0'.") from error
    return sorted({path.split("/")[0] for path in paths})


def _make_error(name: str, looked: str, there: list[str]) -> FileNotFoundError:
    what = f"; there are {', '.join(there)}" if there else ""
    return FileNotFoundError(f"There is no prepared data set {name!r}: {redact.show(looked)} holds no {_INFO}{what}.")
