"""Finds and opens files, local or remote. All formats open their files through this module.

Local files are in `local_files.py`, files behind URLs in `object_stores.py` and `fsspec_files.py`, copies of these on
the local disk in `disk_copies.py`.
"""

from __future__ import annotations

import glob
import io
import os
import re
from collections.abc import Iterable
from typing import Any

from bushel.base import redact
from bushel.sources.local_files import File, LocalFile, as_stream
from bushel.sources.paths import Options, Path, expand_path, is_url, normalize_path, paths_type_error

_WILD = re.compile(r"[*?\[]")


def find_files(paths: Path | Iterable[Path], options: Options | None = None) -> list[str]:
    """The files that paths and patterns name; those of one pattern are sorted.

    `*` and `?` match inside one folder, `**` matches any number of folders. A pattern without a match is an error.
    """
    if isinstance(paths, (str, bytes, os.PathLike)):
        paths = [paths]  # bytes raise an error below
    elif not isinstance(paths, Iterable):
        raise paths_type_error(paths)
    found: list[str] = []
    for path in paths:
        text = normalize_path(path)
        if _find_wildcard(text) < 0 or (not is_url(text) and os.path.exists(text)):
            found.append(text)
            continue
        matches = sorted(_match_pattern(text, options))
        if not matches:
            raise FileNotFoundError(f"No file matches {redact.show(text)!r}.")
        found += matches
    if not found:
        raise ValueError("No paths were given: a source needs at least one file.")
    return found


def _match_pattern(pattern: str, options: Options | None) -> list[str]:
    if not is_url(pattern):
        return [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    from bushel.sources import object_stores  # loaded when it is needed: most programs read local files

    begin = _find_wildcard(pattern)
    fits = re.compile(translate_pattern(pattern))
    deep = "/" in pattern[begin:] or pattern.endswith("**")
    found = object_stores.list_urls(pattern[:begin], options, deep=deep)
    return [pattern] if pattern in found else [url for url in found if fits.fullmatch(url)]


def _find_wildcard(path: str) -> int:
    """The index of the first wildcard in a path, or -1. In web addresses only `*` is one: `?` begins the query."""
    if path.startswith(("http://", "https://")):
        return path.partition("?")[0].find("*")
    found = _WILD.search(path)
    return found.start() if found else -1


def translate_pattern(pattern: str) -> str:
    """A pattern of file names as a regular expression. As in `glob`, `**` means folders only if it stands alone."""
    *folders, name = pattern.split("/")
    deep = "".join("(?:.*/)?" if folder == "**" else f"{_translate_part(folder)}/" for folder in folders)
    return deep + (".*" if name == "**" else _translate_part(name))


def _translate_part(part: str) -> str:
    """The part between two slashes of a pattern, as a regular expression."""
    parts = {"*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*|\?|\[(?!!\])[^\]]+\])", re.sub(r"\*+", "*", part))
    return "".join(
        parts.get(piece) or (_translate_choice(piece[1:-1]) if number % 2 else re.escape(piece))
        for number, piece in enumerate(pieces)
    )


def _translate_choice(signs: str) -> str:
    """The characters between brackets as a regular expression. Only `-`, and a leading `!`, are special."""
    no = signs.startswith("!")
    escaped = re.sub(r"([^-\w])", r"\\\1", signs[no:])
    return f"[{'^' * no}{escaped}]"


def open_file(path: Path, options: Options | None = None) -> File:
    """Opens a local file or an object behind a URL.

    Args:
      path: a path, or a URL such as "s3://bucket/key", "gs://...", "az://...", "https://...", or of any fsspec store.
      options: options of the store: its own settings, "timeout_s", "retries", "cache_dir" and "cache_bytes".
    """
    text = normalize_path(path)
    if not is_url(text):
        return LocalFile(text)
    from bushel.sources import object_stores

    return object_stores.open_url(text, options)


def open_stream(path: Path, options: Options | None = None) -> io.BufferedIOBase:
    """A file as a Python file object with `read` and `seek`, for libraries that need one."""
    text = expand_path(path)
    return as_stream(open_file(text, options)) if is_url(text) else open(text, "rb")


def fingerprint_files(paths: Iterable[str], options: Options | None = None) -> list[Any]:
    """A value that changes when one of the files changes: the version of each. Reads no content."""
    options = {
        key: value for key, value in (options or {}).items() if not key.startswith("cache_")
    }  # a version needs no copy on disk
    return [open_file(path, options).version() for path in paths]
