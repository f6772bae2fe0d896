"""Arrays in files: `.npy`, `.npz` and safetensors, mapped into memory, so that what is not read stays on disk."""

from __future__ import annotations

import functools
import io
import json
import math
import os
import struct
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel.base import redact
from bushel.base.errors import DamagedFile, TooLarge
from bushel.sources import limits, stores
from bushel.sources.stores import Options, Path

_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
    "C64": "<c8",
}
_END, _END_64 = b"PK\x05\x06", b"PK\x06\x06"  # what follows the directory of an archive
_NEEDS_JAX = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}

Arrays = dict[str, Callable[[], np.ndarray]]
"""How the arrays of a file are read, by name."""


class _Unreadable(ValueError):
    """An array that is not there, or that is of a kind which is not read. The file is whole."""


def load_arrays(path: Path, names: Sequence[str] | None = None, *, storage_options: Options | None = None) -> Any:
    """The array of an `.npy` file, or a dict of those of an `.npz` or `.safetensors` file, for `ArrayDataSource`.

    Local files are mapped; a pickle of the source then holds the path and not the data. Compressed `.npz` files and
    remote files are read into memory. Do not shorten a file while it is mapped: the system would end the process.

    Args:
      path: a file or URL; what it is, its ending says.
      names: only these arrays; all by default.
      storage_options: of the store where the file lies.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "x.npy")
    >>> np.save(path, np.arange(6).reshape(3, 2))
    >>> from bushel.sources import ArrayDataSource
    >>> ArrayDataSource(load_arrays(path))[1]
    array([2, 3])
    """
    text = stores.local(path)
    shown, kind = redact.show(text), redact.remove_query(text).rpartition(".")[2]
    if kind not in _READERS:
        raise ValueError(f"{shown}: an array file ends in .npy, .npz or .safetensors.")
    if kind == "npy" and names is not None:
        raise ValueError(f"{shown}: an .npy file has one array without a name, so names={names!r} has no meaning.")
    file = stores.open_file(text, storage_options)
    content = io.BytesIO(file.read(0, file.size)) if stores.is_url(text) else None
    try:
        found = _READERS[kind](text, content)
        if kind == "npy":
            return found[""]()
        for name in names or ():
            if name not in found:
                raise _Unreadable(f"has no array {name!r}; it has {', '.join(map(repr, found))}.")
        return {name: found[name]() for name in (found if names is None else names)}
    except ImportError:
        raise
    except TooLarge as error:
        raise TooLarge(f"{shown} is not read: {error}.") from None
    except _Unreadable as error:
        raise ValueError(f"{shown} {error}") from None
    except Exception as error:  # whatever the readers of headers, archives and compressed data stumble over
        if str(error).startswith(("Object arrays cannot be loaded", "Array can't be memory-mapped: Python objects")):
            raise ValueError(
                f"{shown} has an array of Python objects, which is not read. Choose others by their names."
            ) from None
        raise DamagedFile(f"{shown} is not a complete .{kind} file: {error}") from error


def _npy(path: str, content: io.BytesIO | None) -> Arrays:
    def array() -> np.ndarray:
        with open(path, "rb") if content is None else content as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            found = _mapped(path, file, size) if content is None else None
            if found is not None:
                return found
            file.seek(0)
            return _read(file, size)

    return {"": array}


def _npz(path: str, content: io.BytesIO | None) -> Arrays:
    with zipfile.ZipFile(content or path) as archive:
        _check_directory(archive)
        return {
            entry.filename.removesuffix(".npy"): functools.partial(_member, path, content, entry)
            for entry in archive.infolist()
        }


def _check_directory(archive: zipfile.ZipFile) -> None:
    """Refuses an archive whose entries are fewer, or other, than its end says: zipfile takes what it can read."""
    entries, file = archive.infolist(), archive.fp
    assert file is not None
    file.seek(archive.start_dir)
    rest = file.read()
    at = 0
    for entry in entries:
        if rest[at : at + 4] != b"PK\x01\x02":
            raise ValueError(f"its directory ends before the entry {entry.filename!r}")
        sizes = struct.unpack_from("<HHH", rest, at + 28)
        name = rest[at + 46 : at + 46 + sizes[0]]
        file.seek(entry.header_offset + 30)
        if file.read(len(name)) != name or not name.endswith(b".npy"):
            raise ValueError(f"the entry {entry.filename!r} of its directory has another name where it lies")
        at += 46 + sum(sizes)
    if rest[at : at + 4] not in (_END, _END_64):
        raise ValueError(f"its directory does not end after {len(entries)} entries")
    stated, place = _stated_directory(rest, at)
    if stated != len(entries) or len({entry.filename for entry in entries}) != stated:
        raise ValueError(f"its directory has {len(entries)} entries, and {stated} by its end")
    # Where the two differ, zipfile takes what comes before for something that is not the archive's.
    if place != archive.start_dir:
        raise ValueError(f"its directory begins at byte {archive.start_dir}, and at byte {place} by its end")


def _stated_directory(rest: bytes, at: int) -> tuple[int, int]:
    """How many entries the end of an archive states, and where the first of them lies."""
    if rest[at : at + 4] == _END_64:
        stated, _, place = struct.unpack_from("<QQQ", rest, at + 32)
    else:
        stated, _, place = struct.unpack_from("<HII", rest, at + 10)
    return stated, place


def _member(path: str, content: io.BytesIO | None, entry: zipfile.ZipInfo) -> np.ndarray:
    """An array of an archive."""
    if entry.compress_type == zipfile.ZIP_STORED and content is None:
        mapped = _mapped_member(path, entry)
        if mapped is not None:
            return mapped
    if entry.compress_type != zipfile.ZIP_STORED:
        limits.check_array(entry.file_size)  # zipfile gives no more than that
    with zipfile.ZipFile(content or path) as archive, archive.open(entry) as member:  # it compares the checksum
        return _read(member, entry.file_size)


def _mapped_member(path: str, entry: zipfile.ZipInfo) -> np.ndarray | None:
    """An array of an archive without compression, mapped where it lies; None where only NumPy reads its header."""
    with open(path, "rb") as file:
        file.seek(entry.header_offset)
        local = file.read(30)
        if local[:4] != b"PK\x03\x04":
            raise ValueError(f"the entry {entry.filename} is not where the index says")
        start = file.seek(sum(struct.unpack_from("<HH", local, 26)), os.SEEK_CUR)
        return _mapped(path, file, start + entry.file_size)


Header = tuple[tuple[int, ...], bool, np.dtype[Any]]
"""Shape, whether in Fortran's order, and dtype of an array."""


def _header(file: Any) -> Header | None:
    """The header of an array that `file` stands at; None where only NumPy itself reads it, or refuses the array."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):  # names of fields in UTF-8
        return None
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    header = read(file)
    return None if header[2].hasobject else header


def _mapped(path: str, file: Any, end: int) -> np.ndarray | None:
    """The array that `file` stands at, mapped. It must end at byte `end`. None where only NumPy reads it."""
    header = _header(file)
    if header is None:
        return None
    shape, fortran, dtype = header
    _check_size(shape, dtype, end - file.tell())
    return _map(path, file.tell(), shape, dtype, "F" if fortran else "C")


def _read(file: Any, size: int) -> np.ndarray:
    """The array in a file of `size` bytes, read by NumPy."""
    header = _header(file)
    if header is not None:  # before NumPy takes memory for what the header says
        _check_size(header[0], header[2], size - file.tell())
    file.seek(0)
    found = np.lib.format.read_array(file, allow_pickle=False)
    if file.read(1):  # this also compares the checksum of an archive's member, at its end
        raise ValueError("there are bytes behind the array that its header describes")
    return found


def _check_size(shape: tuple[int, ...], dtype: Any, size: int) -> None:
    """Refuses an array that is smaller or larger than the bytes there are for it."""
    wanted = math.prod(shape) * dtype.itemsize
    if any(axis < 0 for axis in shape) or wanted != size:
        raise ValueError(f"an array {dtype}{list(shape)} takes {wanted} bytes, and there are {size}")


def _map(path: str, offset: int, shape: tuple[int, ...], dtype: Any, order: Any = "C") -> np.ndarray:
    if 0 in shape or not shape:  # nothing to map, or a single number
        with open(path, "rb") as file:
            file.seek(offset)
            count = math.prod(shape)
            return np.frombuffer(file.read(count * np.dtype(dtype).itemsize), dtype).reshape(shape)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order=order)


def _safetensors(path: str, content: io.BytesIO | None) -> Arrays:
    with open(path, "rb") if content is None else content as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        (length,) = struct.unpack("<Q", file.read(8))
        if length > size - 8:
            raise ValueError(f"its header would have {length} bytes in a file of {size}")
        header = json.loads(file.read(length))
        data = None if content is None else file.read()
    header.pop("__metadata__", None)
    spans = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    ends = [0, *(high for _, high in spans)]
    if [low for low, _ in spans] != ends[:-1] or ends[-1] != size - 8 - length:
        raise ValueError("its header leaves out bytes, or describes some twice")
    return {
        name: functools.partial(_tensor, path, data, 8 + length, size, name, entry) for name, entry in header.items()
    }


def _tensor(path: str, data: bytes | None, base: int, size: int, name: str, entry: dict[str, Any]) -> np.ndarray:
    """An array of a safetensors file of `size` bytes, whose data begin at byte `base`."""
    dtype, shape = _dtype(name, entry["dtype"]), tuple(entry["shape"])
    low, high = entry["data_offsets"]
    if not 0 <= low <= high <= size - base:
        raise ValueError(f"the array {name!r} is said to lie at bytes {low} to {high}, which cannot be")
    _check_size(shape, dtype, high - low)
    if data is None:
        return _map(path, base + low, shape, dtype)
    return np.frombuffer(data[low:high], dtype).reshape(shape)


def _dtype(name: str, kind: str) -> np.dtype[Any]:
    if kind in _NEEDS_JAX:
        try:
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, _NEEDS_JAX[kind]))
        except (ImportError, AttributeError):
            raise ImportError(f"The array {name!r} is of type {kind}: pip install -U 'bushel[jax]' ml_dtypes") from None
    if kind not in _DTYPES:
        raise _Unreadable(f"has an array {name!r} of the type {kind}, which is not read. Choose others by their names.")
    return np.dtype(_DTYPES[kind])


_READERS: dict[str, Any] = {"npy": _npy, "npz": _npz, "safetensors": _safetensors}
