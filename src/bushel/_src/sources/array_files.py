"""Arrays in `.npy`, `.npz` and safetensors files. Local files are mapped: only what is read leaves the disk."""

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

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile, TooLarge
from bushel._src.base.hints import explains_arguments
from bushel._src.base.late_imports import install_command
from bushel._src.base.public import public
from bushel._src.sources import file_access, size_limits
from bushel._src.sources.paths import Options, Path, expand_path, is_url

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
_END, _END_64 = b"PK\x05\x06", b"PK\x06\x06"  # the marks after the directory of an archive
_NEEDS_JAX = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}

Arrays = dict[str, Callable[[], np.ndarray]]
"""The arrays of a file by name, each as a function that reads it."""


class _Unreadable(ValueError):
    """An array does not exist, or has an unsupported type. The file is not damaged."""


@public("bushel.sources")
@explains_arguments('Write `load_arrays(path, columns=["x"])`.')
def load_arrays(path: Path, *, columns: Sequence[str] | None = None, storage_options: Options | None = None) -> Any:
    """Load the array of an `.npy` file, or a dict of the arrays of an `.npz` or `.safetensors` file.

    Pass the result to `ArrayDataSource`. Local files are mapped, so a pickle of the source holds the path and not the
    data. Compressed `.npz` files and remote files are read into memory. Do not shorten a file while it is mapped: the
    system would kill the process.

    Args:
      path: a file or URL. Its ending says which format it has.
      columns: load only these arrays; all by default.
      storage_options: options of the store that holds the file.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "x.npy")
    >>> np.save(path, np.arange(6).reshape(3, 2))
    >>> from bushel.sources import ArrayDataSource
    >>> ArrayDataSource(load_arrays(path))[1]
    array([2, 3])
    """
    text = expand_path(path)
    shown, kind = redact.show(text), redact.remove_query(text).rpartition(".")[2]
    if kind not in _READERS:
        raise ValueError(f"{shown} is not an array file: its name must end in .npy, .npz or .safetensors.")
    if kind == "npy" and columns is not None:
        raise ValueError(f"{shown}: an .npy file has one array without a name. Leave out columns={columns!r}.")
    file = file_access.open_file(text, storage_options)
    content = io.BytesIO(file.read(0, file.size)) if is_url(text) else None
    try:
        found = _READERS[kind](text, content)
        if kind == "npy":
            return found[""]()
        for name in columns or ():
            if name not in found:
                raise _Unreadable(f"{shown} has no array {name!r}; it has {', '.join(map(repr, found))}.")
        return {name: found[name]() for name in (found if columns is None else columns)}
    except ImportError:
        raise
    except TooLarge as error:
        raise TooLarge(f"{shown} is not read: {error}") from None
    except _Unreadable as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # the readers of headers, archives and compressed data raise many kinds of errors
        if str(error).startswith(("Object arrays cannot be loaded", "Array can't be memory-mapped: Python objects")):
            raise ValueError(
                f"{shown} has an array of Python objects, which Bushel does not load. Name the other arrays."
            ) from None
        raise DamagedFile(f"{shown} is not a complete .{kind} file: {error}") from error


def _open_npy(path: str, content: io.BytesIO | None) -> Arrays:
    def array() -> np.ndarray:
        with open(path, "rb") if content is None else content as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            found = _map_array(path, file, size) if content is None else None
            if found is not None:
                return found
            file.seek(0)
            return _read_array(file, size)

    return {"": array}


def _open_npz(path: str, content: io.BytesIO | None) -> Arrays:
    with zipfile.ZipFile(content or path) as archive:
        _check_directory(archive)
        return {
            entry.filename.removesuffix(".npy"): functools.partial(_read_member, path, content, entry)
            for entry in archive.infolist()
        }


def _check_directory(archive: zipfile.ZipFile) -> None:
    """Raise an error if the directory of an archive contradicts its end. zipfile does not compare the two."""
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
    stated, place = _parse_directory_end(rest, at)
    if stated != len(entries) or len({entry.filename for entry in entries}) != stated:
        raise ValueError(f"its directory has {len(entries)} entries, but its end says {stated}")
    # If the two differ, zipfile believes that other data was put before the archive, and corrects all places.
    if place != archive.start_dir:
        raise ValueError(f"its directory begins at byte {archive.start_dir}, but its end says byte {place}")


def _parse_directory_end(rest: bytes, at: int) -> tuple[int, int]:
    """Return what the end of an archive says: the number of entries, and the place of the first."""
    if rest[at : at + 4] == _END_64:
        stated, _, place = struct.unpack_from("<QQQ", rest, at + 32)
    else:
        stated, _, place = struct.unpack_from("<HII", rest, at + 10)
    return stated, place


def _read_member(path: str, content: io.BytesIO | None, entry: zipfile.ZipInfo) -> np.ndarray:
    """Read an array of an archive."""
    if entry.compress_type == zipfile.ZIP_STORED and content is None:
        mapped = _map_member(path, entry)
        if mapped is not None:
            return mapped
    if entry.compress_type != zipfile.ZIP_STORED:
        size_limits.check_array(entry.file_size)  # zipfile returns no more bytes than this
    with zipfile.ZipFile(content or path) as archive, archive.open(entry) as member:  # zipfile compares the checksum
        return _read_array(member, entry.file_size)


def _map_member(path: str, entry: zipfile.ZipInfo) -> np.ndarray | None:
    """Map an uncompressed array of an archive; None if only NumPy itself can read its header."""
    with open(path, "rb") as file:
        file.seek(entry.header_offset)
        local = file.read(30)
        if local[:4] != b"PK\x03\x04":
            raise ValueError(f"the entry {entry.filename} is not where the index says")
        start = file.seek(sum(struct.unpack_from("<HH", local, 26)), os.SEEK_CUR)
        return _map_array(path, file, start + entry.file_size)


Header = tuple[tuple[int, ...], bool, np.dtype[Any]]
"""The shape of an array, whether it is in Fortran order, and its dtype."""


def _read_header(file: Any) -> Header | None:
    """Read the header of an array at the position of `file`; None if only NumPy itself can read it, or rejects it."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):  # later versions, with names of fields in UTF-8
        return None
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    header = read(file)
    return None if header[2].hasobject else header


def _map_array(path: str, file: Any, end: int) -> np.ndarray | None:
    """Map the array at the position of `file`, which must end at byte `end`; None if only NumPy itself can read it."""
    header = _read_header(file)
    if header is None:
        return None
    shape, fortran, dtype = header
    _check_size(shape, dtype, end - file.tell())
    return _map_range(path, file.tell(), shape, dtype, "F" if fortran else "C")


def _read_array(file: Any, size: int) -> np.ndarray:
    """Read the array in a file of `size` bytes with NumPy."""
    header = _read_header(file)
    if header is not None:  # before NumPy allocates as much memory as the header says
        _check_size(header[0], header[2], size - file.tell())
    file.seek(0)
    found = np.lib.format.read_array(file, allow_pickle=False)
    if file.read(1):  # reading to the end also makes zipfile compare the checksum
        raise ValueError("there are bytes after the array that the header describes")
    return found


def _check_size(shape: tuple[int, ...], dtype: Any, size: int) -> None:
    """Raise an error if an array needs fewer or more bytes than the file has for it."""
    wanted = math.prod(shape) * dtype.itemsize
    if any(axis < 0 for axis in shape) or wanted != size:
        raise ValueError(f"an array {dtype}{list(shape)} takes {wanted} bytes, but there are {size}")


def _map_range(path: str, offset: int, shape: tuple[int, ...], dtype: Any, order: Any = "C") -> np.ndarray:
    if 0 in shape or not shape:  # an empty array or a single number cannot be mapped
        with open(path, "rb") as file:
            file.seek(offset)
            count = math.prod(shape)
            return np.frombuffer(file.read(count * np.dtype(dtype).itemsize), dtype).reshape(shape)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order=order)


def _open_safetensors(path: str, content: io.BytesIO | None) -> Arrays:
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
        raise ValueError("the arrays in its header have gaps between them, or overlap")
    return {
        name: functools.partial(_read_tensor, path, data, 8 + length, size, name, entry)
        for name, entry in header.items()
    }


def _read_tensor(path: str, data: bytes | None, base: int, size: int, name: str, entry: dict[str, Any]) -> np.ndarray:
    """Read an array of a safetensors file of `size` bytes, whose data begins at byte `base`."""
    dtype, shape = _parse_dtype(path, name, entry["dtype"]), tuple(entry["shape"])
    low, high = entry["data_offsets"]
    if not 0 <= low <= high <= size - base:
        raise ValueError(f"its header says that the array {name!r} is at bytes {low} to {high}, which is impossible")
    _check_size(shape, dtype, high - low)
    if data is None:
        return _map_range(path, base + low, shape, dtype)
    return np.frombuffer(data[low:high], dtype).reshape(shape)


def _parse_dtype(path: str, name: str, kind: str) -> np.dtype[Any]:
    if kind in _NEEDS_JAX:
        try:
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, _NEEDS_JAX[kind]))
        except (ImportError, AttributeError):
            raise ImportError(
                f"{redact.show(path)} has an array {name!r} of type {kind}, which needs ml_dtypes: "
                f"{install_command('jax')} -U ml_dtypes"
            ) from None
    if kind not in _DTYPES:
        raise _Unreadable(
            f"{redact.show(path)} has an array {name!r} of the unsupported type {kind}. Name the other arrays."
        )
    return np.dtype(_DTYPES[kind])


_READERS: dict[str, Any] = {"npy": _open_npy, "npz": _open_npz, "safetensors": _open_safetensors}
