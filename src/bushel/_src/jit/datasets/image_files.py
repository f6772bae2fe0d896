"""The files of each image data set: which they are, where they come from, and how they become images and labels."""

from __future__ import annotations

import abc
import shutil
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from bushel._src.base.errors import DamagedFile
from bushel._src.jit.datasets import downloads, image_formats
from bushel._src.jit.datasets.downloads import Remote


class ImageParts(abc.ABC):
    """The files of an image data set."""

    folder: str
    """The name of their folder in the cache."""

    @abc.abstractmethod
    def read(self, split: str, folder: Path) -> tuple[np.ndarray, ...]:
        """Read images, labels, and labels of other kinds into memory."""

    @abc.abstractmethod
    def map(self, split: str, folder: Path) -> tuple[np.ndarray, ...]:
        """Map the same from disk into memory. Compressed files are decompressed into `folder` first."""


class IdxFiles(ImageParts):
    """One file of images and one of labels for each split, in IDX format."""

    @abc.abstractmethod
    def find_file(self, split: str, kind: str, folder: Path) -> Path:
        """Return the path of a file, downloaded if needed. `kind` is "images-idx3-ubyte" or "labels-idx1-ubyte"."""

    def _find_files(self, split: str, folder: Path) -> list[Path]:
        return [self.find_file(split, kind, folder) for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]

    def read(self, split: str, folder: Path) -> tuple[np.ndarray, ...]:
        images, labels = self._find_files(split, folder)
        return image_formats.read_idx(images, image_formats.IMAGES), image_formats.read_idx(
            labels, image_formats.LABELS
        )

    def map(self, split: str, folder: Path) -> tuple[np.ndarray, ...]:
        images, labels = (downloads.unpack(path, folder) for path in self._find_files(split, folder))
        return image_formats.map_idx(images, image_formats.IMAGES), image_formats.map_idx(labels, image_formats.LABELS)


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
class CifarFiles(ImageParts):
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
        return image_formats.split_cifar_records(data, path, self.label_bytes)
