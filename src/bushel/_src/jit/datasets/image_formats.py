"""File formats of image data sets: IDX of the MNIST family, and the binary version of CIFAR. Bytes in, arrays out."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import IO

import numpy as np

from bushel._src.base.errors import DamagedFile
from bushel._src.jit.datasets.downloads import open_for_reading

IMAGES, LABELS = 0x803, 0x801
CIFAR_SHAPE = (3, 32, 32)
_MOST_VALUES_PER_BYTE = 1100  # gzip makes at most 1,032 bytes of one


def _read_idx_shape(file: IO[bytes], path: Path, magic: int) -> tuple[int, ...]:
    """Read the header of an IDX file and return the shape in it. The first value comes next in the file."""
    ndim = magic & 0xFF
    header = file.read(4 * (1 + ndim))
    if len(header) < 4 * (1 + ndim):
        raise DamagedFile(f"{path} is not an IDX file: it has only {len(header)} bytes.")
    number, *shape = struct.unpack(f">{1 + ndim}I", header)
    if number != magic:
        raise DamagedFile(f"{path} is not an IDX file of {ndim} axes: it begins with {number:#x}, not {magic:#x}.")
    return tuple(shape)


def read_idx(path: Path, magic: int) -> np.ndarray:
    """Read all values of an IDX file of bytes, compressed or not."""
    try:
        with open_for_reading(path) as file:
            shape = _read_idx_shape(file, path, magic)
            wanted = math.prod(shape)
            # A damaged header must not make us allocate more memory than the file could ever fill.
            if wanted > _MOST_VALUES_PER_BYTE * path.stat().st_size:
                raise DamagedFile(
                    f"{path} has {path.stat().st_size} bytes, too few for the {wanted} values of its header."
                )
            data = file.read(wanted + 1)  # one value more shows whether the file is too long
    except (EOFError, OSError) as error:
        raise DamagedFile(f"{path} cannot be read to its end: {error}. Delete it to download it again.") from error
    _check_size(path, len(data), wanted)
    return np.frombuffer(data, np.uint8).reshape(shape)


def map_idx(path: Path, magic: int) -> np.ndarray:
    """Map the values of an uncompressed IDX file into memory."""
    with open(path, "rb") as file:
        shape = _read_idx_shape(file, path, magic)
        offset = file.tell()
    _check_size(path, path.stat().st_size - offset, math.prod(shape))
    return np.memmap(path, np.uint8, mode="r", offset=offset, shape=shape)


def split_cifar_records(data: np.ndarray, path: Path, label_bytes: int) -> tuple[np.ndarray, ...]:
    """Split records of CIFAR's binary version into images (rows, columns, colours), fine labels and coarse labels.

    A record has `label_bytes` labels. The last one is the fine label. With one label there are no coarse ones.
    """
    size = label_bytes + math.prod(CIFAR_SHAPE)
    if not data.size or data.size % size:
        raise DamagedFile(f"{path} has {data.size} bytes, which is not a multiple of a record's {size} bytes.")
    records = data.reshape(-1, size)
    images = records[:, label_bytes:].reshape(-1, *CIFAR_SHAPE).transpose(0, 2, 3, 1)
    return images, *(records[:, place] for place in reversed(range(label_bytes)))


def _check_size(path: Path, count: int, wanted: int) -> None:
    if count != wanted:
        raise DamagedFile(
            f"{path} has {count} values, but its header announces {wanted}. Delete it to download it again."
        )
