"""Finds and opens files, local or remote. All formats open their files through this module.

Local files are in `local_files.py`, files behind URLs in `object_stores.py` and `fsspec_files.py`, copies of these on
the local disk in `remote_requests.py`.
"""

from __future__ import annotations

import fnmatch
import glob
import io
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile
from bushel._src.sources import shard_journals
from bushel._src.sources.local_files import File, LocalFile, as_stream, changed_error, find_version
from bushel._src.sources.paths import Options, Path, expand_path, is_url, normalize_path, paths_type_error
from bushel._src.sources.shard_journals import Journal

_WILD = re.compile(r"[*?\[]")
_PART = ".part"
"""The end of patterns that find temporary files of conversions. Other patterns do not, such as "train-*"."""


def find_files(paths: Path | Iterable[Path], options: Options | None = None) -> list[str]:
    """Return the files that paths and patterns name; those of one pattern are sorted.

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
            found.append(find_shard(text))
            continue
        matches = sorted(_match_pattern(text, options), key=shard_journals.final_name)
        if not matches:
            raise FileNotFoundError(f"No file matches {redact.show(text)!r}.")
        found += matches
    if not found:
        raise ValueError("No paths were given: a source needs at least one file.")
    return found


def find_shard(path: str) -> str:
    """Return where a shard lies: under its final name, or under a temporary one if a conversion to it was interrupted.

    This is known for local files. In a store it would cost a request for each file, so there only patterns find it.
    """
    folder, name = os.path.split(path)
    target = shard_journals.find_target(name)
    if target is None or is_url(path):
        return path
    where = os.path.join(folder, shard_journals.journal_name(target))
    if not os.path.exists(where):
        return path
    try:
        journal = _read_journal(where, None)
    except FileNotFoundError:  # the conversion has ended meanwhile
        return path
    return _find_staged(path, journal) if name in journal.new else path


def _find_staged(path: str, journal: Journal) -> str:
    return path + journal.mark if os.path.exists(path + journal.mark) else path


def _read_journal(path: str, options: Options | None) -> Journal:
    file = open_file(path, options)
    return Journal.parse(file.read(0, file.size), file.name)


def _match_pattern(pattern: str, options: Options | None) -> list[str]:
    return _match_urls(pattern, options) if is_url(pattern) else _match_local(pattern)


def _match_local(pattern: str) -> list[str]:
    folder, last = os.path.split(pattern)
    journals = os.path.join(pattern if last == "**" else folder, f".*{shard_journals.ENDING}")
    while True:
        before = glob.glob(journals, recursive=True)
        found = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
        if not pattern.endswith(_PART):
            found = [path for path in found if not shard_journals.is_staged(path)]
        if before != glob.glob(journals, recursive=True):  # a conversion has begun or ended meanwhile
            continue
        try:
            for where in before:
                journal, above = _read_journal(where, None), os.path.dirname(where)
                void = {os.path.join(above, name) for name in (*journal.old, *journal.new)}
                new = [os.path.join(above, name) for name in journal.new if last == "**" or fnmatch.fnmatch(name, last)]
                found = [path for path in found if path not in void] + [_find_staged(path, journal) for path in new]
        except FileNotFoundError:  # a conversion has ended meanwhile
            continue
        return found


def _match_urls(pattern: str, options: Options | None) -> list[str]:
    from bushel._src.sources import object_stores  # loaded when it is needed: most programs read local files

    begin = _find_wildcard(pattern)
    fits = re.compile(translate_pattern(pattern))
    deep = "/" in pattern[begin:] or pattern.endswith("**")
    prefix = pattern[:begin]
    folder = prefix[: prefix.rfind("/") + 1]
    while True:
        # The whole folder, since the journal of a conversion begins with a dot.
        found = object_stores.list_urls(folder if folder.count("/") > 2 else prefix, options, deep=deep)
        if pattern in found:
            return [pattern]
        try:
            there = resolve_shards(found, options)
        except FileNotFoundError:  # a conversion has ended meanwhile
            continue
        parts = pattern.endswith(_PART)
        return [there[url] for url in there if fits.fullmatch(url) and (parts or not shard_journals.is_staged(url))]


def resolve_shards(listed: Iterable[str], options: Options | None = None) -> dict[str, str]:
    """Return where the files of a listing lie, by their names. What an interrupted conversion replaces is left out.

    `listed` has all files of the folders that it has files of. A file that the conversion has completed may lie under a
    temporary name; it has its final name here. Temporary files of conversions that were killed earlier are left as they
    are.
    """
    found = {path: path for path in listed}
    for where in [path for path in found if shard_journals.is_journal(path.rpartition("/")[2])]:
        journal, above = _read_journal(where, options), where[: where.rfind("/") + 1]
        new: dict[str, str] = {}
        for name in journal.new:
            places = [path for path in (above + name + journal.mark, above + name) if path in found]
            if not places:
                raise DamagedFile(
                    f"{redact.show(above + name)} is missing: a conversion had completed it, and it was removed since "
                    f"then. Remove {redact.show(where)}, and convert again."
                )
            new[above + name] = places[0]
        for path in [where, *new.values(), *(above + name for name in (*journal.old, *journal.new))]:
            found.pop(path, None)
        found |= new
    return found


def _find_wildcard(path: str) -> int:
    """Return the index of the first wildcard in a path, or -1.

    In web addresses only `*` is one: `?` begins the query.
    """
    if path.startswith(("http://", "https://")):
        return path.partition("?")[0].find("*")
    found = _WILD.search(path)
    return found.start() if found else -1


def translate_pattern(pattern: str) -> str:
    """Return a pattern of file names as a regular expression.

    As in `glob`, `**` means folders only if it stands alone.
    """
    *folders, name = pattern.split("/")
    deep = "".join("(?:.*/)?" if folder == "**" else f"{_translate_part(folder)}/" for folder in folders)
    return deep + (".*" if name == "**" else _translate_part(name))


def _translate_part(part: str) -> str:
    """Return the part between two slashes of a pattern, as a regular expression."""
    parts = {"*": "[^/]*", "?": "[^/]"}
    sections = re.split(r"(\*|\?|\[(?!!\])[^\]]+\])", re.sub(r"\*+", "*", part))
    return "".join(
        parts.get(section) or (_translate_choice(section[1:-1]) if number % 2 else re.escape(section))
        for number, section in enumerate(sections)
    )


def _translate_choice(signs: str) -> str:
    """Return the characters between brackets as a regular expression. Only `-`, and a leading `!`, are special."""
    no = signs.startswith("!")
    escaped = re.sub(r"([^-\w])", r"\\\1", signs[no:])
    return f"[{'^' * no}{escaped}]"


def open_file(path: Path, options: Options | None = None) -> File:
    """Open a local file or an object behind a URL.

    Args:
      path: a path, or a URL such as "s3://bucket/key", "gs://...", "az://...", "https://...", or of any fsspec store.
      options: options of the store: its own settings, "timeout_s", "retries", "cache_dir" and "cache_bytes".
    """
    text = normalize_path(path)
    try:
        return open_exactly(text, options)
    except FileNotFoundError:
        final = shard_journals.final_name(text)
        if final == text:
            raise
    return open_exactly(final, options)  # the shard has got its final name meanwhile


def open_exactly(path: str, options: Options | None) -> File:
    """As `open_file`, but a shard that has got its final name meanwhile is not found under its temporary one."""
    if not is_url(path):
        return LocalFile(path)
    from bushel._src.sources import object_stores

    return object_stores.open_url(path, options)


def check_together(paths: Sequence[str], versions: Sequence[list[Any]]) -> None:
    """Raise DamagedFile if local files were replaced while they were opened one after the other.

    A conversion that runs at the same time removes all old shards before a new one gets its name. So if old and new
    shards were opened, an old one is not under its name now. Files in a store compare their version at every read.

    Args:
      paths: the files, all of them opened.
      versions: the version of each when it was opened.
    """
    if len(paths) == 1:
        return
    for path, version in zip(paths, versions, strict=True):
        if is_url(path):
            continue
        final = shard_journals.final_name(path)
        now = find_version(path) or find_version(final)
        if now != version:
            raise changed_error(final, version, now or [])


def open_stream(path: Path, options: Options | None = None) -> io.BufferedIOBase:
    """Return a file as a Python file object with `read` and `seek`, for libraries that need one."""
    text = expand_path(path)
    if is_url(text):
        return as_stream(open_file(text, options))
    if not os.path.exists(text):  # perhaps a shard that has got its final name meanwhile
        text = shard_journals.final_name(text)
    return open(text, "rb")


def fingerprint_files(paths: Iterable[str], options: Options | None = None) -> list[Any]:
    """Return a value that changes when one of the files changes: the version of each. Read no content."""
    options = {
        key: value for key, value in (options or {}).items() if not key.startswith("cache_")
    }  # a version needs no copy on disk
    return [open_file(path, options).version() for path in paths]
