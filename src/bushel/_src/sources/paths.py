"""Paths of files as texts: local ones, and URLs. Nothing is opened here: see `file_access.py`."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any

from bushel._src.base import redact

Path = str | os.PathLike[str]
Paths = Path | Iterable[Path]
Options = Mapping[str, Any]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LOST_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")
_FILE_OF_USER = re.compile(r"file://[^/]*(?:@|%40)", re.IGNORECASE)


def is_url(path: Path) -> bool:
    """Return whether a path is a URL of a remote file. "file://" URLs are local."""
    found = _URL.match(os.fspath(path))
    return found is not None and found.group(1) != "file"


def expand_path(path: Path) -> str:
    """Return a path as text: `file://` is removed, and `~` becomes the home folder. Other URLs stay unchanged."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"A path is a str or an os.PathLike, got {redact.clean(repr(path))} of type {type(path).__name__}."
        )
    text = os.fspath(path)
    if isinstance(text, str) and _LOST_SLASH.match(text) and not os.path.exists(text):
        raise ValueError(
            f"{redact.show(text)} has one slash after its scheme: pathlib.Path turns // into /. Pass URLs as str."
        )
    if _FILE_OF_USER.match(text):
        raise ValueError(f"{redact.show(text)} names a user of another machine. Pass the path of a local file.")
    plain = os.path.expanduser(text.removeprefix("file://"))
    if not text.startswith("file://") or os.path.exists(
        plain
    ):  # many users write file:// before a path without encoding it
        return plain
    return urllib.parse.unquote(plain)


def normalize_path(path: Path) -> str:
    """Return a path as `expand_path` returns it. The scheme of a URL is made lowercase."""
    text = expand_path(path)
    found = _URL.match(text)
    return text[: found.end()].lower() + text[found.end() :] if found else text


def only_this_process_sees(path: Path) -> bool:
    """Return whether a path lies in the memory of this process, so that worker processes can neither read nor write
    it.
    """
    return os.fspath(path).lower().startswith("memory://")


def paths_type_error(given: Any) -> TypeError:
    """Return the error to raise for an argument that is neither a path nor a list of paths."""
    what = redact.clean(repr(given))
    return TypeError(f"paths must be a path or a list of paths, got {what} of type {type(given).__name__}.")


def get_cache_folder() -> str:
    """Return the folder for files that Bushel keeps between runs."""
    chosen = os.environ.get("BUSHEL_CACHE_DIR")
    if chosen and is_url(chosen):
        raise ValueError(
            f"BUSHEL_CACHE_DIR must name a local folder, because Bushel maps its files; it is {redact.show(chosen)!r}. "
            "To keep `ds.cache`, columns or statistics in a store, pass its address as their own folder."
        )
    return chosen or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "bushel")
