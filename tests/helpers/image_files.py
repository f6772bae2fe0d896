"""Files of data sets, small and in the true formats, for the tests of this folder."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile

import numpy as np


def images_of(count, seed, shape=(28, 28)):
    """Images whose label can be seen: row number `label` is bright."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count).astype(np.uint8)
    images = rng.integers(0, 100, (count, *shape), np.uint8)
    images[np.arange(count), labels] = 255
    return images, labels


def idx(array):
    """An array of bytes in IDX format."""
    return struct.pack(f">I{array.ndim}I", 0x800 | array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder, train=30, test=10, packed=True, names=("train", "t10k"), start=""):
    """The four files of MNIST; returns what is in them."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for split, count, name in (("train", train, names[0]), ("test", test, names[1])):
        images, labels = written[split] = images_of(count, seed=count)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            path = folder / f"{start}{name}-{kind}-ubyte"
            if packed:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx(array), 1))
            else:
                path.write_bytes(idx(array))
    return written


def cifar_records(count, seed, label_bytes):
    """Records of CIFAR's binary form, with the images (rows, columns, colours) and the labels that are in them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, (count, label_bytes), np.uint8)
    pixels = rng.integers(0, 256, (count, 3, 32, 32), np.uint8)
    records = np.concatenate([labels, pixels.reshape(count, -1)], axis=1).tobytes()
    return records, pixels.transpose(0, 2, 3, 1), labels[:, -1], labels[:, 0]


def write_tar(path, members):
    """An archive with these members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
