"""WebDataset shards, read in order: tar files in which members with the same name before the first dot are a sample."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable
from typing import Any

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile, StateMismatch
from bushel._src.base.state_names import in_states
from bushel._src.sources import file_access
from bushel._src.sources.local_files import File
from bushel._src.sources.paths import Options
from bushel._src.sources.user_sources import SequentialReader

_BLOCK = 512
_WINDOW = 1 << 20
_GIVEN_UP = -1  # the position after a damaged member: the place of the next one is unknown
_LOST = "the header of a member is damaged, so the next member cannot be found"


_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")


def expand_braces(paths: Any) -> Any:
    """Expand braces in paths, as webdataset does: "train-{000..009}.tar" becomes ten paths."""
    if isinstance(paths, (str, os.PathLike)):
        return _expand(os.fspath(paths))
    if isinstance(paths, bytes) or not isinstance(paths, Iterable):
        return paths  # the error is raised where all paths are checked
    return [one for path in paths for one in (expand_braces(path) if isinstance(path, (str, os.PathLike)) else [path])]


def _expand(text: str) -> list[str]:
    found = _BRACES.search(text)
    if found is None or os.path.exists(text):
        return [text]
    low, high, names = found.groups()
    if names is not None:
        choices = names.split(",")
    else:
        width = max(len(low), len(high)) if "0" in (low[:-1][:1], high[:-1][:1]) else 0  # a number begins with a zero
        step = 1 if int(low) <= int(high) else -1
        choices = [f"{number:0{width}d}" for number in range(int(low), int(high) + step, step)]
    before, after = text[: found.start()], text[found.end() :]
    return [f"{before}{choice}{rest}" for choice in choices for rest in _expand(after)]


@in_states("webdataset_stream")
@dataclasses.dataclass(frozen=True)
class WebDatasetStream:
    """The samples of one tar file, in order: dicts of bytes, by the endings of the members' names, and `__key__`."""

    path: str
    storage_options: Options | None = None

    def open(self) -> WebDatasetReader:
        return WebDatasetReader(file_access.open_file(self.path, self.storage_options))

    def fingerprint(self) -> Any:
        return file_access.fingerprint_files([self.path], self.storage_options)

    def __repr__(self) -> str:
        return f"WebDatasetStream({redact.base_name(self.path)})"


@dataclasses.dataclass(frozen=True)
class _Member:
    name: str
    content: bytes
    after: int  # where the next member begins


class WebDatasetReader(SequentialReader):
    """Reads a tar file in order. Its position is the place of the first member of the next sample."""

    def __init__(self, file: File):
        self._file = file
        self._base, self._data = 0, b""
        self._place = 0
        self._after = _GIVEN_UP  # the place after the last damaged sample

    def read(self, count: int) -> list[dict[str, Any]]:
        samples: list[dict[str, Any]] = []
        while len(samples) < count:
            try:
                sample = self._read_sample()
            except Exception:
                if samples:  # first return the samples before the damaged one
                    return samples
                raise
            if sample is None:
                break
            samples.append(sample)
        return samples

    def _read_sample(self) -> dict[str, Any] | None:
        sample: dict[str, Any] = {}
        place, self._after = self._place, _GIVEN_UP
        while place != _GIVEN_UP:
            member = self._read_member(place)
            if member is None:
                if not sample:
                    self._check_rest(place)
                break
            folder, _, base = member.name.rpartition("/")
            stem, dot, ending = base.partition(".")
            if not dot or not stem:  # not a part of a sample: the entry of a folder, or a hidden file
                place = member.after
                continue
            key = f"{folder}/{stem}" if folder else stem
            if sample and (key != sample["__key__"] or ending.lower() in sample):
                if key == sample["__key__"]:
                    self._after = place
                    raise self._damage_error(place, f"the sample {key!r} has two members .{ending}")
                break
            sample["__key__"] = key
            sample[ending.lower()] = member.content
            place = member.after
        self._place = place
        return sample or None

    def _read_member(self, place: int) -> _Member | None:
        """Read the next member that is a file; None at the end mark."""
        long_name: str | None = None
        long_size: int | None = None
        while True:
            header = self._read_bytes(place, _BLOCK)
            if not any(header):
                return None
            size, name, kind = self._parse_header(header, place)
            start = place + _BLOCK
            size = size if long_size is None or kind in b"xLg" else long_size
            place = start + -(-size // _BLOCK) * _BLOCK
            if kind in b"xgL":
                text = self._read_bytes(start, size)
                if kind == b"L":  # how GNU tar stores a long name
                    long_name = text.rstrip(b"\0").decode("utf-8", "surrogateescape")
                elif kind == b"x":  # how POSIX tar does
                    try:
                        facts = _parse_pax(text)
                        long_size = _parse_number(facts["size"].encode(), 10) if "size" in facts else None
                    except ValueError:
                        raise self._damage_error(start, "an extended header is damaged") from None
                    if any(key.startswith("GNU.sparse.") for key in facts):
                        raise self._sparse_error(place)
                    long_name = facts.get("path", long_name)
                continue
            if kind == b"S":
                raise self._sparse_error(place)
            if kind in b"0\x007":  # 7 is an old code for a file
                return _Member(long_name or name, bytes(self._read_bytes(start, size)), place)
            long_name = long_size = None

    def _parse_header(self, header: bytes, place: int) -> tuple[int, str, bytes]:
        """Return the size, name and kind of a member."""
        try:
            stated = _parse_number(header[148:156].strip(b" \0") or b"0", 8)
            raw = header[124:136]
            # A number that begins with 0x80 is binary. One that begins with 0xff would be negative: not a size.
            size = int.from_bytes(raw[1:], "big") if raw[0] == 0x80 else _parse_number(raw.strip(b" \0") or b"0", 8)
        except ValueError:
            stated, size = -1, 0
        if stated != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise self._damage_error(place, "it is not a tar file" if place == 0 else _LOST)
        name = header[:100].rstrip(b"\0").decode("utf-8", "surrogateescape")
        prefix = header[345:500].partition(b"\0")[0].decode("utf-8", "surrogateescape")
        if prefix and header[257:262] == b"ustar" and header[262:263] == b"\0":
            name = f"{prefix}/{name}"
        return size, name, header[156:157]

    def _check_rest(self, place: int) -> None:
        """Raise an error if data follows the end mark: stopping there would lose it silently."""
        while place < self._file.size:
            data = self._file.read(place, min(_WINDOW, self._file.size - place))
            zeros = len(data) - len(data.lstrip(b"\0"))
            if zeros < len(data):
                raise self._damage_error(
                    place + zeros,
                    "there is data after the end mark. Either several tar files were joined into one, or a header was "
                    "overwritten with zeros",
                )
            place += len(data)

    def _read_bytes(self, place: int, length: int) -> bytes:
        low = place - self._base
        if low < 0 or low + length > len(self._data):
            if place + length > self._file.size:
                raise self._damage_error(place, "the file has no end mark: it was cut short")
            self._base = place
            self._data = self._file.read(place, min(max(length, _WINDOW), self._file.size - place))
            low = 0
        return self._data[low : low + length]

    def _sparse_error(self, place: int) -> DamagedFile:
        return DamagedFile(
            f"{self._file.name} has a sparse file before byte {place}, which Bushel does not read. Write the tar file "
            "without -S (--sparse)."
        )

    def _damage_error(self, place: int, why: str) -> DamagedFile:
        if place == 0 and self._file.size > 1 and self._file.read(0, 2) == b"\x1f\x8b":
            return DamagedFile(
                f"{self._file.name} is compressed with gzip, so it cannot be read from a saved position. Decompress it "
                "(gunzip): the images and sounds in it are compressed already."
            )
        return DamagedFile(f"{self._file.name} is damaged at byte {place}: {why}.")

    def skip(self) -> int:
        self._place = self._after
        return 1

    def get_state(self) -> dict[str, Any]:
        return {"tar_offset": self._place}

    def set_state(self, state: dict[str, Any]) -> None:
        place = state["tar_offset"]
        if place != _GIVEN_UP and (not 0 <= place <= self._file.size or place % _BLOCK):
            name, size = redact.base_name(self._file.name), self._file.size
            raise StateMismatch(
                f"The state is at byte {place} of {name}, where no member begins: it has {size} bytes.", "tar_offset"
            )
        self._place = place

    def close(self) -> None:
        self._data = b""


def _parse_number(text: bytes, base: int) -> int:
    """Return a number in a header: only digits. A negative size would lead back to members that were read before."""
    if not text.isdigit():
        raise ValueError(f"{text!r} is not a number")
    return int(text, base)


def _parse_pax(text: bytes) -> dict[str, str]:
    """Parse the lines "LENGTH key=value" of an extended header."""
    found: dict[str, str] = {}
    place = 0
    while place < len(text):
        start = text.find(b" ", place, place + 20) + 1  # after the length and a space
        end = place + _parse_number(text[place : start - 1], 10) if start else 0
        if not start < end <= len(text):
            raise ValueError(f"a line of an extended header ends at byte {end} of {len(text)}")
        key, _, value = text[start:end].rstrip(b"\n").partition(b"=")
        found[key.decode()] = value.decode("utf-8", "surrogateescape")
        place = end
    return found
