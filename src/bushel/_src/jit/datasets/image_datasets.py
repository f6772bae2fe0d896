"""Data sets of small images: MNIST and its family, CIFAR-10 and CIFAR-100, in memory or read from disk."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from bushel._src.base import checks
from bushel._src.base.errors import DamagedFile
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.jit.datasets import downloads
from bushel._src.jit.datasets.downloads import Remote
from bushel._src.jit.datasets.image_files import CifarFiles, EmnistFiles, EmnistSubset, ImageParts, MnistFiles
from bushel._src.jit.host_callbacks import DiskSource
from bushel._src.jit.record_order import Ordering


@public("bushel.jit.datasets")
@in_states("image_example")
class Example(NamedTuple):
    """An image and its label, or a batch of them. Access them by name, by key, or by unpacking.

    >>> image, label = Example(1, 2)
    >>> Example(1, 2)["label"], dict(**Example(1, 2))
    (2, {'image': 1, 'label': 2})
    """

    image: Any
    label: Any

    def __getitem__(self, key: Any) -> Any:
        """Return an entry by its name or its number."""
        return self._asdict()[key] if isinstance(key, str) else tuple.__getitem__(self, key)

    def keys(self) -> tuple[str, ...]:
        """Return the names of the entries."""
        return self._fields


@in_states("fine_image_example")
class FineExample(NamedTuple):
    """An image with a label, and the label of the larger group that its kind belongs to."""

    image: Any
    label: Any
    coarse_label: Any

    def __getitem__(self, key: Any) -> Any:
        """Return an entry by its name or its number."""
        return self._asdict()[key] if isinstance(key, str) else tuple.__getitem__(self, key)

    def keys(self) -> tuple[str, ...]:
        """Return the names of the entries."""
        return self._fields


def _make_example(images: Any, *labels: Any) -> Any:
    return (Example if len(labels) == 1 else FineExample)(images, *labels)


@in_states("ImageDataset")
class ImageDataset:
    """Images as uint8 (rows, columns, colours) and labels as int32, from files in a cache folder.

    Files that are not there are downloaded. Elements are `Example(image, label)`.
    """

    def __init__(self, files: ImageParts, split: Literal["train", "test"], cache_dir: Any):
        self.split = split
        self.cache_dir = downloads.get_cache_folder(files.folder, cache_dir)
        images, *labels = files.read(_check_split(split), self.cache_dir)
        _check_counts(images, labels, self.cache_dir)
        images = images[..., None] if images.ndim == 3 else images
        self._arrays = _make_example(images, *(kind.astype(np.int32) for kind in labels))

    def __len__(self) -> int:
        return len(self._arrays.label)

    def __getitem__(self, index: int) -> Any:
        return _make_example(*(array[index] for array in tuple(self._arrays)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.split!r}, {len(self)} images)"

    def arrays(self) -> Any:
        """Return all images and labels, as an `Example`; of CIFAR-100 as a `FineExample`."""
        return self._arrays

    def as_array_dict(self) -> dict[str, np.ndarray]:
        """Return all images and labels, as a dict."""
        return self._arrays._asdict()


@in_states("StandardImageDataset")
class StandardImageDataset(ImageDataset):
    """An image data set with the splits "train" and "test", and no other choice."""

    files: ClassVar[ImageParts]

    def __init__(self, split: Literal["train", "test"] = "train", cache_dir: Any = None):
        super().__init__(self.files, split, cache_dir)

    @classmethod
    def open_images(
        cls, split: Literal["train", "test"] = "train", cache_dir: Any = None
    ) -> tuple[int, Callable[[int], Any]]:
        """Return the number of images in a split, and a function that reads one from disk."""
        return _open_images(cls.files, split, cache_dir)

    @classmethod
    def make_disk_source(
        cls,
        *,
        split: Literal["train", "test"] = "train",
        cache_dir: Any = None,
        ordering: Ordering = "shuffle",
        prefetch_size: int = 64,
    ) -> DiskSource:
        """Return a source that reads images from disk when the loader needs them."""
        checks.choice(ordering, Ordering, "ordering")  # before anything is downloaded
        return DiskSource(*cls.open_images(split, cache_dir), ordering=ordering, prefetch_size=prefetch_size)


def _check_split(split: str) -> str:
    return checks.choice(split, ("train", "test"), "split")


def _check_counts(images: np.ndarray, labels: Sequence[np.ndarray], folder: Path) -> None:
    for kind in labels:
        if len(images) != len(kind):
            raise DamagedFile(f"The files in {folder} have {len(images)} images but {len(kind)} labels.")


def _open_images(files: ImageParts, split: str, cache_dir: Any) -> tuple[int, Callable[[int], Any]]:
    folder = downloads.get_cache_folder(files.folder, cache_dir)
    images, *labels = files.map(_check_split(split), folder)
    _check_counts(images, labels, folder)
    return len(images), functools.partial(_read_example, images, labels)


def _read_example(images: np.ndarray, labels: Sequence[np.ndarray], number: int) -> Any:
    image = np.asarray(images[number])
    image = image[..., None] if image.ndim == 2 else image
    return _make_example(image, *(np.int32(kind[number]) for kind in labels))


@public("bushel.jit.cereal")
class MNISTDataset(StandardImageDataset):
    """Handwritten digits: 60,000 and 10,000 images of 28 x 28."""

    files = MnistFiles(
        "mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    )


@public("bushel.jit.datasets")
class FashionMNISTDataset(StandardImageDataset):
    """Clothes: 60,000 and 10,000 images of 28 x 28. Uses Debian's dataset-fashion-mnist if it is installed."""

    files = MnistFiles(
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


@public("bushel.jit.datasets")
class KMNISTDataset(StandardImageDataset):
    """Handwritten Japanese characters: 60,000 and 10,000 images of 28 x 28."""

    files = MnistFiles(
        "kmnist",
        "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        (
            "bdb82020997e1d708af4cf47b453dcf7",
            "e144d726b3acfaa3e44228e80efcd344",
            "5c965bf0a639b31b8f53240b1b52f4d7",
            "7320c461ea6c1c855c0b718fb2a4b134",
        ),
    )


@public("bushel.jit.datasets")
class EMNISTDataset(ImageDataset):
    """Handwritten digits and letters, in six subsets. As in the files, images are mirrored along the diagonal."""

    def __init__(
        self, subset: EmnistSubset = "balanced", split: Literal["train", "test"] = "train", cache_dir: Any = None
    ):
        self.subset = subset
        super().__init__(_choose_emnist_files(subset), split, cache_dir)

    @classmethod
    def make_disk_source(
        cls,
        *,
        subset: EmnistSubset = "balanced",
        split: Literal["train", "test"] = "train",
        cache_dir: Any = None,
        ordering: Ordering = "shuffle",
        prefetch_size: int = 64,
    ) -> DiskSource:
        """Return a source that reads images from disk when the loader needs them."""
        checks.choice(ordering, Ordering, "ordering")  # before anything is downloaded
        files = _choose_emnist_files(subset)
        return DiskSource(*_open_images(files, split, cache_dir), ordering=ordering, prefetch_size=prefetch_size)


def _choose_emnist_files(subset: str) -> EmnistFiles:
    return EmnistFiles(checks.choice(subset, EmnistSubset, "subset"))


@public("bushel.jit.cereal")
class CIFAR10Dataset(StandardImageDataset):
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


@public("bushel.jit.datasets")
class CIFAR100Dataset(StandardImageDataset):
    """Photographs of a hundred kinds in twenty groups: 50,000 and 10,000 images of 32 x 32 in colour.

    `label` is the kind, `coarse_label` the group.
    """

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
