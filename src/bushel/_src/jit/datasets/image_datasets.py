"""Data sets of small images: MNIST and its family, CIFAR-10 and CIFAR-100, in memory or read from disk.

Each knows its files, where they come from, and their formats. `downloads.py` fetches them.
"""

from __future__ import annotations

import abc
import functools
import math
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, NamedTuple

import numpy as np

from bushel._src.base import checks
from bushel._src.base.errors import DamagedFile
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.jit.datasets import downloads
from bushel._src.jit.datasets.downloads import Remote, open_for_reading
from bushel._src.jit.host_callbacks import DiskSource
from bushel._src.jit.record_order import Ordering

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


class ImageDatasetFiles(abc.ABC):
    """The files of an image data set."""

    folder: str
    """The name of their folder in the cache."""

    @abc.abstractmethod
    def read(self, split: str, folder: Path) -> tuple[np.ndarray, ...]:
        """Read images, labels, and labels of other kinds into memory."""

    @abc.abstractmethod
    def map(self, split: str, folder: Path) -> tuple[np.ndarray, ...]:
        """Map the same from disk into memory. Compressed files are decompressed into `folder` first."""


class IdxFiles(ImageDatasetFiles):
    """One file of images and one of labels for each split, in IDX format."""

    @abc.abstractmethod
    def find_file(self, split: str, kind: str, folder: Path) -> Path:
        """Return the path of a file, downloaded if needed. `kind` is "images-idx3-ubyte" or "labels-idx1-ubyte"."""

    def _find_files(self, split: str, folder: Path) -> list[Path]:
        return [self.find_file(split, kind, folder) for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]

    def read(self, split: str, folder: Path) -> tuple[np.ndarray, ...]:
        images, labels = self._find_files(split, folder)
        return read_idx(images, IMAGES), read_idx(labels, LABELS)

    def map(self, split: str, folder: Path) -> tuple[np.ndarray, ...]:
        images, labels = (downloads.unpack(path, folder) for path in self._find_files(split, folder))
        return map_idx(images, IMAGES), map_idx(labels, LABELS)


@dataclass(frozen=True)
class MnistFiles(IdxFiles):
    """The four files of MNIST, or of a data set in its layout. `md5` has those of the images and labels of "train",
    then those of "test".
    """

    folder: str
    url: str
    md5: tuple[str, str, str, str]
    also_in: tuple[Path, ...] = ()

    def find_file(self, split: str, kind: str, folder: Path) -> Path:
        name = f"{'train' if split == 'train' else 't10k'}-{kind}.gz"
        md5 = self.md5[2 * (split == "test") + kind.startswith("labels")]
        return downloads.fetch(Remote(name, self.url + name, md5), folder, self.also_in)


EmnistSubset = Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"]
EMNIST_ARCHIVE = Remote(
    "gzip.zip", "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"
)


@dataclass(frozen=True)
class EmnistFiles(IdxFiles):
    """One subset of EMNIST: its files in the folder, or inside the archive of all subsets."""

    subset: str
    folder: str = "emnist"

    def find_file(self, split: str, kind: str, folder: Path) -> Path:
        name = f"emnist-{self.subset}-{split}-{kind}"
        paths = [path for path in (folder / name, folder / f"{name}.gz") if path.is_file()]
        return paths[0] if paths else self._extract(f"{name}.gz", folder)

    def _extract(self, name: str, folder: Path) -> Path:
        """Copy one file out of the archive of all subsets."""
        archive = downloads.fetch(EMNIST_ARCHIVE, folder)
        with zipfile.ZipFile(archive) as packed:
            members = [member for member in packed.namelist() if member.rpartition("/")[2] == name]
            if not members:
                raise DamagedFile(f"{archive} does not contain {name}.")
            with packed.open(members[0]) as source, downloads.open_for_writing(folder / name) as file:
                shutil.copyfileobj(source, file, 1 << 20)
        return folder / name


@dataclass(frozen=True)
class CifarFiles(ImageDatasetFiles):
    """The binary version of CIFAR, which has no pickles: the archive, or the folder that is in it."""

    folder: str
    remote: Remote
    inside: str
    members: dict[str, tuple[str, ...]]
    label_bytes: int

    def _find_files(self, split: str, folder: Path) -> list[Path]:
        paths = [folder / self.inside / name for name in self.members[split]]
        if not all(path.is_file() for path in paths):
            archive = downloads.fetch(self.remote, folder)
            try:
                with tarfile.open(archive) as packed:
                    for path in paths:
                        source = packed.extractfile(f"{self.inside}/{path.name}")
                        assert source is not None
                        with downloads.open_for_writing(path) as file:
                            shutil.copyfileobj(source, file, 1 << 20)
            except (KeyError, tarfile.TarError, EOFError) as error:
                raise DamagedFile(f"{archive} is incomplete: {error}. Delete it to download it again.") from error
        return paths

    def read(self, split: str, folder: Path) -> tuple[np.ndarray, ...]:
        parts = [self._split(np.fromfile(path, np.uint8), path) for path in self._find_files(split, folder)]
        return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))

    def map(self, split: str, folder: Path) -> tuple[np.ndarray, ...]:
        paths = self._find_files(split, folder)
        whole = paths[0]
        if len(paths) > 1:  # a memory map needs one file
            whole = folder / self.inside / f"{split}_whole.bin"
            if not whole.is_file():
                with downloads.open_for_writing(whole) as file:
                    for path in paths:
                        file.write(path.read_bytes())
        return self._split(np.memmap(whole, np.uint8, mode="r"), whole)

    def _split(self, data: np.ndarray, path: Path) -> tuple[np.ndarray, ...]:
        return split_cifar_records(data, path, self.label_bytes)


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

    def __init__(self, files: ImageDatasetFiles, split: Literal["train", "test"], cache_dir: Any):
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

    files: ClassVar[ImageDatasetFiles]

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


def _open_images(files: ImageDatasetFiles, split: str, cache_dir: Any) -> tuple[int, Callable[[int], Any]]:
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
