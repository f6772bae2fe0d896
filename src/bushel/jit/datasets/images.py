"""The data sets of small images: MNIST and its family, CIFAR-10 and CIFAR-100, as arrays or mapped from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bushel.jit.datasets import files, formats
from bushel.jit.datasets.files import Remote
from bushel.jit.datasets.kinds import EMNIST_SUBSETS, CifarFiles, EmnistFiles, Files, IdxFiles
from bushel.jit.host import DiskSource
from bushel.jit.records import Records


class Example(NamedTuple):
    """An image and its label, or a batch of them: by name, by key, or unpacked.

    >>> image, label = Example(1, 2)
    >>> Example(1, 2)["label"], dict(**Example(1, 2))
    (2, {'image': 1, 'label': 2})
    """

    image: Any
    label: Any

    def __getitem__(self, key: Any) -> Any:
        """An entry by its name or its number."""
        return self._asdict()[key] if isinstance(key, str) else tuple.__getitem__(self, key)

    def keys(self) -> tuple[str, ...]:
        """The names of the entries."""
        return self._fields


class ImageDataset:
    """Images as uint8 (rows, columns, colours) and labels as int32, from files in a cache folder.

    They are downloaded if they are not there. Elements are `Example(image, label)`.
    """

    files: ClassVar[Files]

    def __init__(self, split: str = "train", cache_dir: Any = None):
        self._load(self.files, split, cache_dir)

    def _load(self, source: Files, split: str, cache_dir: Any) -> None:
        self.split = _checked(split)
        self.cache_dir = files.cache_folder(source.folder, cache_dir)
        images, labels = source.read(split, self.cache_dir)
        _paired(images, labels, self.cache_dir)
        self._arrays = Example(images[..., None] if images.ndim == 3 else images, labels.astype(np.int32))

    def __len__(self) -> int:
        return len(self._arrays.label)

    def __getitem__(self, index: int) -> Example:
        return Example(self._arrays.image[index], self._arrays.label[index])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.split!r}, {len(self)} images)"

    def arrays(self) -> Example:
        """All images and labels."""
        return self._arrays

    def as_array_dict(self) -> dict[str, np.ndarray]:
        """All images and labels, as a dict."""
        return self._arrays._asdict()

    @classmethod
    def make_disk_source(
        cls, *, split: str = "train", cache_dir: Any = None, ordering: str = "shuffle", prefetch_size: int = 64
    ) -> Records:
        """A source that reads images from disk when they are needed."""
        return _disk_source(cls.files, split, cache_dir, ordering, prefetch_size)


def _checked(split: str) -> str:
    if split not in ("train", "test"):
        raise ValueError(f"The splits are 'train' and 'test', got {split!r}.")
    return split


def _paired(images: np.ndarray, labels: np.ndarray, folder: Path) -> None:
    if len(images) != len(labels):
        raise formats.Damaged(f"The files in {folder} have {len(images)} images but {len(labels)} labels.")


def _disk_source(source: Files, split: str, cache_dir: Any, ordering: str, prefetch_size: int) -> Records:
    folder = files.cache_folder(source.folder, cache_dir)
    images, labels = source.map(_checked(split), folder)
    _paired(images, labels, folder)

    def read(number: int) -> Example:
        image = np.asarray(images[number])
        return Example(image[..., None] if image.ndim == 2 else image, np.int32(labels[number]))

    return DiskSource(len(labels), read, ordering=ordering, prefetch_size=prefetch_size)


class MNISTDataset(ImageDataset):
    """Handwritten digits: 60,000 and 10,000 images of 28 x 28."""

    files = IdxFiles(
        "mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    )


class FashionMNISTDataset(ImageDataset):
    """Clothes: 60,000 and 10,000 images of 28 x 28. Debian's package dataset-fashion-mnist is used if it is there."""

    files = IdxFiles(
        "fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        also_in=(Path("/usr/share/datasets/fashion-mnist"), Path("/usr/share/dataset-fashion-mnist")),
    )


class KMNISTDataset(ImageDataset):
    """Handwritten Japanese characters: 60,000 and 10,000 images of 28 x 28."""

    files = IdxFiles(
        "kmnist",
        "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        (
            "bdb82020997e1d708af4cf47b453dcf7",
            "e144d726b3acfaa3e44228e80efcd344",
            "5c965bf0a639b31b8f53240b1b52f4d7",
            "7320c461ea6c1c855c0b718fb2a4b134",
        ),
    )


class EMNISTDataset(ImageDataset):
    """Handwritten digits and letters, in six subsets. Images are as in the files: mirrored along the diagonal."""

    def __init__(self, subset: str = "balanced", split: str = "train", cache_dir: Any = None):
        self.subset = subset
        self._load(_emnist(subset), split, cache_dir)

    @classmethod
    def make_disk_source(
        cls,
        *,
        subset: str = "balanced",
        split: str = "train",
        cache_dir: Any = None,
        ordering: str = "shuffle",
        prefetch_size: int = 64,
    ) -> Records:
        """A source that reads images from disk when they are needed."""
        return _disk_source(_emnist(subset), split, cache_dir, ordering, prefetch_size)


def _emnist(subset: str) -> EmnistFiles:
    if subset not in EMNIST_SUBSETS:
        raise ValueError(f"The subsets of EMNIST are {', '.join(EMNIST_SUBSETS)}; got {subset!r}.")
    return EmnistFiles(subset)


class CIFAR10Dataset(ImageDataset):
    """Photographs of ten kinds: 50,000 and 10,000 images of 32 x 32 in colour."""

    files = CifarFiles(
        "cifar-10",
        Remote(
            "cifar-10-binary.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
        ),
        "cifar-10-batches-bin",
        {"train": tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "test": ("test_batch.bin",)},
        label_bytes=1,
    )


class CIFAR100Dataset(ImageDataset):
    """Photographs of a hundred kinds: 50,000 and 10,000 images of 32 x 32 in colour, with the fine labels."""

    files = CifarFiles(
        "cifar-100",
        Remote(
            "cifar-100-binary.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
        ),
        "cifar-100-binary",
        {"train": ("train.bin",), "test": ("test.bin",)},
        label_bytes=2,
    )
