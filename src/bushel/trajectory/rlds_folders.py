"""Where a prepared TFDS data set lies: `data_dir/name[/config]/version`, the newest version if none is named."""

from __future__ import annotations

import contextlib
import glob
import re

from bushel.base import redact
from bushel.sources import stores
from bushel.sources.stores import Options, Path
from bushel.sources.tfds_json import read_json

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_INFO = "dataset_info.json"


def is_version(text: str) -> bool:
    """Whether a text reads like "1.0.0"."""
    return _VERSION.fullmatch(text) is not None


def find_folder(name: str, data_dir: Path, options: Options | None = None) -> str:
    """The folder of a data set: below `data_dir`, or `data_dir` itself.

    Args:
      name: "name", "name/config", with "/1.0.0" or ":1.0.0" after it for a version.
      data_dir: a path or URL.
      options: of the store.
    """
    root = stores.local(data_dir).rstrip("/")
    plain, _, version = name.partition(":")
    parts = plain.strip("/").split("/")
    if not version and is_version(parts[-1]):
        version = parts.pop()
    if _holds(root, options):
        return _checked(root, parts[0], version, options)
    base = "/".join([root, *parts])
    if version:
        if not _holds(f"{base}/{version}", options):
            raise _nothing(name, f"{base}/{version}", _below(base, "*", options))
        return f"{base}/{version}"
    versions = [found for found in _below(base, "*", options) if is_version(found)]
    if not versions and (config := _config(name, base, options)):
        base = f"{base}/{config}"
        versions = [found for found in _below(base, "*", options) if is_version(found)]
    if not versions:
        raise _nothing(name, base, _below(root, "*/*", options))
    return f"{base}/{max(versions, key=lambda text: [int(number) for number in text.split('.')])}"


def _checked(folder: str, name: str, version: str, options: Options | None) -> str:
    """The folder, if it is that of the data set that was named."""
    info = read_json(f"{folder}/{_INFO}", options)
    found = info["name"].text(), info["version"].text() if "version" in info else ""
    if found[0] != name or (version and found[1] != version):
        wanted = f"{name} {version}".strip()
        raise ValueError(
            f"{redact.show(folder)} holds the data set {found[0]} {found[1]}, not {wanted}. Name the folder above it."
        )
    return folder


def _config(name: str, base: str, options: Options | None) -> str | None:
    """The config of a data set that has some: the one that TFDS has noted as its default, or the only one."""
    found = [config for config in _below(base, "*/*", options) if not config.startswith(".")]
    if len(found) > 1:
        with contextlib.suppress(FileNotFoundError):
            default = read_json(f"{base}/.config/metadata.json", options)["defaultConfigName"]
            if default.text() not in found:
                raise default.wrong(f"is none of the configs {', '.join(found)}")
            return default.text()
        raise ValueError(
            f"{redact.show(base)} has several configs: {', '.join(found)}. Name one, as in {name + '/' + found[0]!r}."
        )
    return found[0] if found else None


def _holds(folder: str, options: Options | None) -> bool:
    try:
        stores.open_file(f"{folder}/{_INFO}", options)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _below(base: str, depth: str, options: Options | None) -> list[str]:
    """The names of the folders below one that hold a data set, `depth` ("*", "*/*") levels down."""
    if not stores.is_url(base):
        found = glob.glob(f"{depth}/{_INFO}", root_dir=base)
    else:
        try:
            found = [url.removeprefix(f"{base}/") for url in stores.find(f"{base}/{depth}/{_INFO}", options)]
        except FileNotFoundError:
            return []
        except ValueError as error:  # a web server lists nothing
            raise ValueError(f"{error} Or name the version, as in 'name:1.0.0'.") from error
    return sorted({path.split("/")[0] for path in found})


def _nothing(name: str, looked: str, there: list[str]) -> FileNotFoundError:
    what = f"; there are {', '.join(there)}" if there else ""
    return FileNotFoundError(f"There is no prepared data set {name!r}: {redact.show(looked)} holds no {_INFO}{what}.")
