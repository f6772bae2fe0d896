"""The files of each kind of image data set: which they are, and how they become images and labels."""

from __future__ import annotations

import abc
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bushel.jit.datasets import files, formats
from bushel.jit.datasets.files import Remote


class Files(abc.ABC):
    """The files of a data set: where they come from, and how they become images and labels."""

    folder: str
    """The name of their folder in the cache."""

    @abc.abstractmethod
    def read(self, split: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels, in memory."""

    @abc.abstractmethod
    def map(self, split: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels, mapped from disk; unpacked there first if need be."""


@dataclass(frozen=True)
class IdxFiles(Files):
    """Four files in IDX format."""

    folder: str
    url: str
    md5: tuple[str, str, str, str]
    also_in: tuple[Path, ...] = ()

    def _paths(self, split: str, folder: Path) -> Iterator[Path]:
        first = 0 if split == "train" else 2
        start = "train" if split == "train" else "t10k"
        for kind, md5 in zip(("images-idx3", "labels-idx1"), self.md5[first : first + 2], strict=True):
            name = f"{start}-{kind}-ubyte.gz"
            yield files.fetched(Remote(name, self.url + name, md5), folder, self.also_in)

    def read(self, split: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        images, labels = self._paths(split, folder)
        return formats.read_idx(images, formats.IMAGES), formats.read_idx(labels, formats.LABELS)

    def map(self, split: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        images, labels = (files.unpacked(path, folder) for path in self._paths(split, folder))
        return formats.map_idx(images, formats.IMAGES), formats.map_idx(labels, formats.LABELS)


EMNIST_SUBSETS = ("balanced", "byclass", "bymerge", "digits", "letters", "mnist")
EMNIST_ARCHIVE = Remote(
    "gzip.zip", "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"
)


@dataclass(frozen=True)
class EmnistFiles(Files):
    """One subset of EMNIST: IDX files, alone in the folder or inside the archive of all subsets."""

    subset: str
    folder: str = "emnist"

    def _paths(self, split: str, folder: Path) -> Iterator[Path]:
        for kind in ("images-idx3", "labels-idx1"):
            name = f"emnist-{self.subset}-{split}-{kind}-ubyte"
            found = [path for path in (folder / name, folder / f"{name}.gz") if path.is_file()]
            yield found[0] if found else self._from_archive(f"{name}.gz", folder)

    def _from_archive(self, name: str, folder: Path) -> Path:
        archive = files.fetched(EMNIST_ARCHIVE, folder)
        with zipfile.ZipFile(archive) as packed:
            inside = [member for member in packed.namelist() if member.rpartition("/")[2] == name]
            if not inside:
                raise formats.Damaged(f"{archive} has no {name} inside.")
            with packed.open(inside[0]) as source, files.written(folder / name) as file:
                shutil.copyfileobj(source, file, 1 << 20)
        return folder / name

    def read(self, split: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        images, labels = self._paths(split, folder)
        return formats.read_idx(images, formats.IMAGES), formats.read_idx(labels, formats.LABELS)

    def map(self, split: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        images, labels = (files.unpacked(path, folder) for path in self._paths(split, folder))
        return formats.map_idx(images, formats.IMAGES), formats.map_idx(labels, formats.LABELS)


@dataclass(frozen=True)
class CifarFiles(Files):
    """CIFAR in its binary form: no pickles. The archive, or the folder that is in it."""

    folder: str
    remote: Remote
    inside: str
    members: dict[str, tuple[str, ...]]
    label_bytes: int

    def _paths(self, split: str, folder: Path) -> list[Path]:
        paths = [folder / self.inside / name for name in self.members[split]]
        if not all(path.is_file() for path in paths):
            archive = files.fetched(self.remote, folder)
            try:
                with tarfile.open(archive) as packed:
                    for path in paths:
                        source = packed.extractfile(f"{self.inside}/{path.name}")
                        assert source is not None
                        with files.written(path) as file:
                            shutil.copyfileobj(source, file, 1 << 20)
            except (KeyError, tarfile.TarError, EOFError) as error:
                raise formats.Damaged(
                    f"{archive} is not whole: {error}. Delete it to have it downloaded again."
                ) from error
        return paths

    def read(self, split: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        parts = [
            formats.cifar_rows(np.fromfile(path, np.uint8), path, self.label_bytes)
            for path in self._paths(split, folder)
        ]
        return np.concatenate([images for images, _ in parts]), np.concatenate([labels[:, -1] for _, labels in parts])

    def map(self, split: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        paths = self._paths(split, folder)
        if len(paths) == 1:
            return self._rows(paths[0])
        whole = folder / self.inside / f"{split}_whole.bin"
        if not whole.is_file():
            with files.written(whole) as file:
                for path in paths:
                    file.write(path.read_bytes())
        return self._rows(whole)

    def _rows(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        images, labels = formats.cifar_rows(np.memmap(path, np.uint8, mode="r"), path, self.label_bytes)
        return images, labels[:, -1]
