"""Files that Bushel writes for itself: written completely or not at all, with a checksum that is checked on reading."""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np

from bushel._src.base.errors import DamagedFile

Path = str | os.PathLike[str]

_MAGIC = b"BUSHEL\x00\x01"
_SEAL = struct.Struct("<8sQI")  # the last bytes of a sealed file: magic, size of the content, its crc32
_CHUNK = 1 << 20
_CHECKSUM = "checksum"
WRITING = ".writing"
"""How the names of files end that are not complete. A process that is killed leaves them behind."""


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[str]:
    """The name of a file that the block makes. It becomes `path` when the block ends, or is removed after an error.

    For libraries that open a file by its name. Where there is a choice, use `replacing`.
    """
    target = os.path.realpath(path)  # a link stays a link
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name[:40]}.{os.urandom(6).hex()}{WRITING}")
    try:
        yield temporary
        try:
            sync(temporary)
            os.replace(temporary, target)
        except OSError as error:
            raise _not_written(path, error) from error
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def sync(path: str) -> None:
    """Wait until the content of a file is on disk."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write. It is renamed to `path` when the block ends without an error, and removed otherwise.

    The content is on disk before the file is renamed: after a power failure `path` is the old file or the complete
    new one.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "x")
    >>> with replacing(path) as file:
    ...     _ = file.write(b"content")
    >>> os.listdir(os.path.dirname(path))
    ['x']
    """
    with new_file(path) as temporary:
        try:
            with open(temporary, "xb") as file:
                yield file
        except OSError as error:
            raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> OSError:
    text = (
        f"{os.fspath(path)} could not be written ({error.strerror or error}). No half-written file was left. "
        "Make room on the disk, or name a folder that can be written"
    )
    return OSError(text) if error.errno is None else OSError(error.errno, text)


class _Summing:
    """Writes to a file, and keeps the size and the checksum of what was written."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self._size = self._crc = 0

    def write(self, data: Any) -> int:
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        return self._file.write(data)

    def seal(self) -> None:
        self._file.write(_SEAL.pack(_MAGIC, self._size, self._crc))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a sealed file: `data`, then their size and checksum.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "x")
    >>> write_bytes(path, b"content")
    >>> read_bytes(path)
    b'content'
    """
    with replacing(path) as file:
        put_bytes(file, data)


def put_bytes(file: IO[bytes], data: bytes) -> None:
    """Write the content of a sealed file into an open one."""
    writer = _Summing(file)
    writer.write(data)
    writer.seal()


def read_bytes(path: Path) -> bytes:
    """Return the content of a sealed file. Raise DamagedFile if the file has changed since it was written."""
    with open(path, "rb") as file:
        return parse_bytes(file.read(), os.fspath(path))


def parse_bytes(data: bytes, name: str, *, verify: bool = True) -> bytes:
    """Return the content of a sealed file from its bytes; `name` is what errors call it."""
    content = data[: -_SEAL.size]
    if verify:
        _compare(name, data[-_SEAL.size :], len(data), zlib.crc32(content))
    return content


def check(path: Path) -> None:
    """Read a sealed file whole and raise DamagedFile unless it is as it was written."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        left, crc = max(size - _SEAL.size, 0), 0
        while left and (chunk := file.read(min(_CHUNK, left))):
            crc = zlib.crc32(chunk, crc)
            left -= len(chunk)
        _compare(path, file.read(), size, crc)


def _compare(path: Path, seal: bytes, size: int, crc: int) -> None:
    if len(seal) != _SEAL.size or not seal.startswith(_MAGIC):
        raise DamagedFile(
            f"{os.fspath(path)} is damaged: its last {_SEAL.size} bytes are not a checksum. It has {size} bytes, and "
            "was cut short, or was not written by this version."
        )
    _, stated, written = _SEAL.unpack(seal)
    if stated != size - _SEAL.size:
        raise DamagedFile(
            f"{os.fspath(path)} is damaged: it has {size - _SEAL.size} bytes of content where {stated} were written."
        )
    if written != crc:
        raise DamagedFile(f"{os.fspath(path)} is damaged: its {stated} bytes do not fit their checksum.")


def write_array(path: Path, values: np.ndarray) -> None:
    """Write a sealed `.npy` file, which `np.load` reads and maps like any other."""
    with replacing(path) as file:
        put_array(file, values)


def put_array(file: IO[bytes], values: np.ndarray) -> None:
    """Write the content of a sealed `.npy` file into an open one."""
    writer: Any = _Summing(file)
    np.lib.format.write_array(writer, np.asanyarray(values), allow_pickle=False)
    writer.seal()


def parse_array(data: bytes, name: str, *, verify: bool = True) -> np.ndarray:
    """Return the array of a sealed `.npy` file from its bytes; `name` is what errors call it."""
    content = parse_bytes(data, name, verify=verify)
    try:
        return np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DamagedFile(f"{name} is damaged: it cannot be read as an array ({error}).") from error


def read_array(path: Path, *, mapped: bool = True, verify: bool = True) -> np.ndarray:
    """Return the array of a sealed `.npy` file, after a check of its checksum.

    Args:
      path: a local file.
      mapped: maps the file instead of reading it.
      verify: False does not check the checksum, for a file that this run has checked before.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "x.npy")
    >>> write_array(path, np.arange(3))
    >>> read_array(path)
    array([0, 1, 2])
    """
    if verify:
        check(path)
    try:
        if mapped:
            with contextlib.suppress(ValueError):  # an array without elements: there is nothing to map
                return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DamagedFile(f"{os.fspath(path)} is damaged: it cannot be read as an array ({error}).") from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file that holds `content` and its checksum under the key "checksum"."""
    with replacing(path) as file:
        file.write(json_bytes(content))


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Return what `write_json` writes.

    >>> json_bytes({"a": 1})
    b'{"checksum": "fba18e97", "a": 1}'
    """
    text = json.dumps(content)
    if _CHECKSUM in content:
        raise ValueError(f"The key {_CHECKSUM!r} is for the checksum of the file itself.")
    separator = ", " if content else ""
    return f'{{"{_CHECKSUM}": "{_crc(text)}"{separator}{text[1:]}'.encode()


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a file that `write_json` wrote. Any other file raises DamagedFile."""
    with open(path, "rb") as file:
        return parse_json(file.read(), os.fspath(path))


def parse_json(data: bytes, name: str, *, needs_checksum: bool = True) -> dict[str, Any]:
    """Return the content of such a file from its bytes; `name` is what errors call it.

    Args:
      data: the bytes of the file.
      name: of the file, for errors.
      needs_checksum: False takes a file without one too, as other programs write it.

    >>> parse_json(b'{"a": 1}', "x.json", needs_checksum=False)
    {'a': 1}
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{name} is damaged: it cannot be read as JSON ({error}).") from error
    if not isinstance(found, dict):
        raise DamagedFile(f"{name} is damaged: it holds a {type(found).__name__} where an object was written.")
    checksum = found.pop(_CHECKSUM, None)
    if checksum is None and not needs_checksum:
        return found
    if checksum is None:
        raise DamagedFile(f"{name} is damaged, or was not written by this version: it has no checksum.")
    if checksum != _crc(json.dumps(found)):
        raise DamagedFile(f"{name} is damaged: its content does not fit its checksum.")
    return found


def _crc(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
