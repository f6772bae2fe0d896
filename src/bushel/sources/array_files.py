"""Arrays in files: `.npy`, `.npz` and safetensors, mapped into memory, so that what is not read stays on disk."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel.base.errors import DamagedFile
from bushel.sources import stores
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
}
_NEEDS_JAX = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


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
    kind = text.rpartition(".")[2]
    if kind not in _READERS:
        raise ValueError(f"{text}: an array file ends in .npy, .npz or .safetensors.")
    if kind == "npy" and names is not None:
        raise ValueError(f"{text}: an .npy file has one array without a name, so names={names!r} has no meaning.")
    file = stores.open_file(text, storage_options)
    content = io.BytesIO(file.read(0, file.size)) if stores.is_url(text) else None
    try:
        found = _READERS[kind](text, content)
    except ImportError:
        raise
    except Exception as error:  # whatever the readers of headers, archives and compressed data stumble over
        raise DamagedFile(f"{text} is no complete .{kind} file: {error}") from error
    if names is None or kind == "npy":
        return found
    for name in names:
        if name not in found:
            raise ValueError(f"{text} has no array {name!r}; it has {', '.join(map(repr, found))}.")
    return {name: found[name] for name in names}


def _npy(path: str, content: io.BytesIO | None) -> np.ndarray:
    if content is not None:
        return np.load(content, allow_pickle=False)
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _npz(path: str, content: io.BytesIO | None) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(content or path) as archive:
        _check_directory(archive)
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if entry.compress_type == zipfile.ZIP_STORED and content is None:
                found[name] = _mapped_member(path, entry)
            else:
                with archive.open(entry) as member:  # zipfile compares the checksum
                    found[name] = np.lib.format.read_array(member, allow_pickle=False)
    return found


def _check_directory(archive: zipfile.ZipFile) -> None:
    """Refuses an archive whose entries are fewer, or other, than its end says: zipfile takes what it can read."""
    entries, file = archive.infolist(), archive.fp
    assert file is not None
    file.seek(archive.start_dir)
    rest = file.read()
    at = 0
    for entry in entries:
        sizes = struct.unpack_from("<HHH", rest, at + 28)
        name = rest[at + 46 : at + 46 + sizes[0]]
        file.seek(entry.header_offset + 30)
        if file.read(len(name)) != name or not name.endswith(b".npy"):
            raise ValueError(f"the entry {entry.filename!r} of its directory has another name where it lies")
        at += 46 + sum(sizes)
    if rest[at : at + 4] not in (b"PK\x05\x06", b"PK\x06\x06"):
        raise ValueError(f"its directory does not end after {len(entries)} entries")
    stated = struct.unpack_from("<H", rest, at + 10)[0] if rest[at + 2] == 5 else len(entries)
    if stated != len(entries):
        raise ValueError(f"its directory has {len(entries)} entries, and {stated} by its end")


def _mapped_member(path: str, entry: zipfile.ZipInfo) -> np.ndarray:
    """An array of an archive without compression, mapped where it lies."""
    with open(path, "rb") as file:
        file.seek(entry.header_offset)
        local = file.read(30)
        if local[:4] != b"PK\x03\x04":
            raise ValueError(f"the entry {entry.filename} is not where the index says")
        file.seek(sum(struct.unpack_from("<HH", local, 26)), os.SEEK_CUR)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.hasobject:
            raise ValueError(f"the array {entry.filename} holds Python objects")
        order = "F" if fortran else "C"
        return _map(path, file.tell(), shape, dtype, order)


def _map(path: str, offset: int, shape: tuple[int, ...], dtype: Any, order: Any = "C") -> np.ndarray:
    if 0 in shape or not shape:  # nothing to map, or a single number
        with open(path, "rb") as file:
            file.seek(offset)
            count = int(np.prod(shape))
            return np.frombuffer(file.read(count * np.dtype(dtype).itemsize), dtype).reshape(shape)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order=order)


def _safetensors(path: str, content: io.BytesIO | None) -> dict[str, np.ndarray]:
    with content or open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        (length,) = struct.unpack("<Q", file.read(8))
        if length > size - 8:
            raise ValueError(f"its header would have {length} bytes in a file of {size}")
        header = json.loads(file.read(length))
        base = 8 + length
        found: dict[str, np.ndarray] = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            dtype, shape = _dtype(name, entry["dtype"]), tuple(entry["shape"])
            low, high = entry["data_offsets"]
            wanted = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            if high - low != wanted or not 0 <= low <= high <= size - base:
                raise ValueError(f"the array {name!r} is said to lie at bytes {low} to {high}, which cannot be")
            if content is None:
                found[name] = _map(path, base + low, shape, dtype)
            else:
                file.seek(base + low)
                found[name] = np.frombuffer(file.read(wanted), dtype).reshape(shape)
    return found


def _dtype(name: str, kind: str) -> np.dtype[Any]:
    if kind in _NEEDS_JAX:
        try:
            import ml_dtypes
        except ImportError:
            raise ImportError(f"The array {name!r} is of type {kind}: pip install 'bushel[jax]'") from None
        return np.dtype(getattr(ml_dtypes, _NEEDS_JAX[kind]))
    if kind not in _DTYPES:
        raise ValueError(f"the array {name!r} is of the unknown type {kind}")
    return np.dtype(_DTYPES[kind])


_READERS: dict[str, Any] = {"npy": _npy, "npz": _npz, "safetensors": _safetensors}
