"""The formats of image data sets: IDX of the MNIST family, and the binary form of CIFAR. Bytes in, arrays out."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import IO

import numpy as np

from bushel.jit.datasets.files import opened

IMAGES, LABELS = 0x803, 0x801
CIFAR_SHAPE = (3, 32, 32)
_MOST_PACKED = 1100  # values that a byte of a packed file can stand for: gzip makes at most 1,032 of one


class Damaged(ValueError):
    """A file that is not what its name says, or not whole."""


def idx_shape(file: IO[bytes], path: Path, magic: int) -> tuple[int, ...]:
    """The shape that the head of an IDX file tells; the file then stands at its first value."""
    ndim = magic & 0xFF
    head = file.read(4 * (1 + ndim))
    if len(head) < 4 * (1 + ndim):
        raise Damaged(f"{path} is no IDX file: it has {len(head)} bytes.")
    found, *shape = struct.unpack(f">{1 + ndim}I", head)
    if found != magic:
        raise Damaged(f"{path} is no IDX file of {ndim} axes: it begins with {found:#x} instead of {magic:#x}.")
    return tuple(shape)


def read_idx(path: Path, magic: int) -> np.ndarray:
    """All values of an IDX file of bytes, packed or not."""
    try:
        with opened(path) as file:
            shape = idx_shape(file, path, magic)
            wanted = math.prod(shape)
            if wanted > _MOST_PACKED * path.stat().st_size:
                raise Damaged(f"{path} has {path.stat().st_size} bytes, too few for the {wanted} values of its head.")
            data = file.read(wanted + 1)  # one more shows that there are too many
    except (EOFError, OSError) as error:
        raise Damaged(f"{path} cannot be read to its end: {error}. Delete it to have it downloaded again.") from error
    _whole(path, len(data), wanted)
    return np.frombuffer(data, np.uint8).reshape(shape)


def map_idx(path: Path, magic: int) -> np.ndarray:
    """The values of an unpacked IDX file, mapped into memory."""
    with open(path, "rb") as file:
        shape = idx_shape(file, path, magic)
        offset = file.tell()
    _whole(path, path.stat().st_size - offset, math.prod(shape))
    return np.memmap(path, np.uint8, mode="r", offset=offset, shape=shape)


def cifar_rows(data: np.ndarray, path: Path | str, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (rows, columns, colours) and labels of CIFAR's binary records; a record's last label is the fine one."""
    size = label_bytes + int(np.prod(CIFAR_SHAPE))
    if not data.size or data.size % size:
        raise Damaged(f"{path} has {data.size} bytes, which is no multiple of a record's {size}. It is not whole.")
    rows = data.reshape(-1, size)
    images = rows[:, label_bytes:].reshape(-1, *CIFAR_SHAPE).transpose(0, 2, 3, 1)
    return images, rows[:, :label_bytes]


def _whole(path: Path, found: int, wanted: int) -> None:
    if found != wanted:
        raise Damaged(
            f"{path} holds {found} values, but its head says {wanted}. Delete it to have it downloaded again."
        )
