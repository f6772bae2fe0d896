"""Files of checksums beside data files, for formats without checksums: writes them, and compares them later."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from bushel._src.base import redact, sealed
from bushel._src.base.errors import DamagedFile
from bushel._src.base.public import public
from bushel._src.sources import file_access, output_folders
from bushel._src.sources.local_files import File
from bushel._src.sources.paths import Options, Path

_PIECE = 1 << 20
_ENDING = ".checksums"


@public("bushel.sources")
def write_checksums(paths: Path | Iterable[Path], *, storage_options: Options | None = None) -> list[str]:
    """Writes a file of checksums (one per MiB) beside each file, local or in a store. Returns the new paths.

    >>> import os, tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp(), "x.npy")
    >>> _ = path.write_bytes(b"abc")
    >>> [os.path.basename(name) for name in write_checksums(path)]
    ['x.npy.checksums']
    >>> check_checksums(path)  # doctest: +ELLIPSIS
    >>> _ = path.write_bytes(b"abd")
    >>> check_checksums(path)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bushel.DamagedFile: ... is damaged: bytes 0 to 3 do not match their checksum.
    """
    written = []
    for path in _find_files(paths, storage_options):
        file = file_access.open_file(path, storage_options)
        found = {"size": file.size, "piece": _PIECE, "crc32": _compute_checksums(file)}
        folder, name = output_folders.open_parent(path + _ENDING, storage_options)
        folder.write(name, sealed.json_bytes(found))
        written.append(path + _ENDING)
    return written


@public("bushel.sources")
def check_checksums(paths: Path | Iterable[Path], *, storage_options: Options | None = None) -> None:
    """Reads whole files and compares them with the checksums that `write_checksums` has written beside them."""
    for path in _find_files(paths, storage_options):
        beside = file_access.open_file(path + _ENDING, storage_options)
        known = _read_checksums(beside)
        file = file_access.open_file(path, storage_options)
        if file.size != known["size"]:
            raise DamagedFile(
                f"{file.name} has {file.size} bytes; it had {known['size']} when its checksums were written."
            )
        for number, (was, now) in enumerate(zip(known["crc32"], _compute_checksums(file), strict=True)):
            if was != now:
                low = number * _PIECE
                high = min(low + _PIECE, file.size)
                raise DamagedFile(f"{file.name} is damaged: bytes {low} to {high} do not match their checksum.")


def _find_files(paths: Path | Iterable[Path], options: Options | None) -> list[str]:
    """The files that paths name, without files of checksums, which a pattern may match too."""
    found = [path for path in file_access.find_files(paths, options) if not path.endswith(_ENDING)]
    if not found:
        raise ValueError(
            f"{redact.clean(str(paths))}: these are files of checksums. Name the files that they belong to."
        )
    return found


def _read_checksums(beside: File) -> dict[str, Any]:
    """The content of a file of checksums. Files of older versions have no checksum of their own."""
    try:
        known = sealed.parse_json(beside.read(0, beside.size), beside.name, needs_checksum=False)
        size, sums = known["size"], known["crc32"]
        if type(size) is not int or not isinstance(sums, list) or not all(type(one) is int for one in sums):
            raise ValueError("its entries are not numbers")
        if known["piece"] != _PIECE or len(sums) != -(-size // _PIECE):
            raise ValueError("its sizes contradict each other")
    except (ValueError, KeyError) as error:
        raise DamagedFile(f"{beside.name} has no complete checksums: {error!r}. Write them again.") from error
    return known


def _compute_checksums(file: File) -> list[int]:
    return [zlib.crc32(file.read(low, min(_PIECE, file.size - low))) for low in range(0, file.size, _PIECE)]
