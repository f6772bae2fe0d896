"""CelebA: images of faces with attributes, from a folder of images or directly from the archive."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bushel._src.base import checks
from bushel._src.base.errors import DamagedFile
from bushel._src.base.public import public
from bushel._src.jit.datasets import downloads
from bushel._src.jit.datasets.downloads import Remote
from bushel._src.jit.host_callbacks import DiskSource
from bushel._src.jit.record_order import Ordering
from bushel._src.sources.media import decode_image
from bushel._src.sources.size_limits import check_record

IMAGES = Remote(
    "img_align_celeba.zip",
    "https://s3-us-west-1.amazonaws.com/udacity-dlnfd/datasets/celeba.zip",
    "00d2c5bc6d35e252742224ab0c1e8fcb",
)
PARTITION = Remote(
    "list_eval_partition.txt",
    "https://drive.google.com/uc?export=download&id=0B7EVK8r0v71pY0NSMzRuSXJEVkk",
    "d32c9cbf5e040fd4025c592c306e6668",
)
ATTRIBUTES = Remote(
    "list_attr_celeba.txt",
    "https://drive.google.com/uc?export=download&id=0B7EVK8r0v71pblRyaVFSWGxPY0U",
    "75e246fa4810816ffd6ee81facbd244c",
)
SPLITS = {"train": "0", "valid": "1", "test": "2"}
IMAGES_PER_TASK = 256


@dataclass(frozen=True)
class Faces:
    """The images of a split, decoded one by one when they are needed, and their attributes."""

    names: list[str]
    location: Path
    read: Callable[[str], bytes]
    attributes: np.ndarray | None
    attribute_names: tuple[str, ...]

    def decode_image(self, number: int) -> np.ndarray:
        """Decode one image to uint8 (rows, columns, colours)."""
        try:
            return decode_image(self.read(self.names[number]))
        except (ValueError, zipfile.BadZipFile) as error:
            raise DamagedFile(f"{self.names[number]} in {self.location} is damaged: {error}") from error

    def decode_images(self) -> np.ndarray:
        """Decode all images, on several threads."""
        shape = self.decode_image(0).shape
        images = np.empty((len(self.names), *shape), np.uint8)

        def fill(first: int) -> None:
            for number in range(first, min(first + IMAGES_PER_TASK, len(images))):
                image = self.decode_image(number)
                if image.shape != shape:
                    raise DamagedFile(
                        f"{self.names[number]} in {self.location} has the shape {image.shape}, but {self.names[0]} "
                        f"has {shape}. All images must have the same size."
                    )
                images[number] = image

        with ThreadPoolExecutor() as pool:
            list(pool.map(fill, range(0, len(images), IMAGES_PER_TASK)))
        return images

    def read_element(self, number: int) -> dict[str, np.ndarray]:
        """Return one image with its attributes."""
        image = {"image": self.decode_image(number)}
        return image if self.attributes is None else {**image, "attributes": self.attributes[number]}


@public("bushel.jit.datasets")
@dataclass
class CelebADataset:
    """Faces: 162,770, 19,867 and 19,962 images of 218 x 178 in colour, with 40 attributes that are 0 or 1.

    Elements are {"image": uint8 (rows, columns, colours), "attributes": int32}. The data set decodes a whole split into
    memory, which takes 19 GB for "train". `make_disk_source` decodes images when the loader needs them. Decoding needs
    the extra `image`.

    Args:
      split: "train", "valid" or "test".
      cache_dir: the folder for the files; by default one in the user's cache. Missing files are downloaded into it.
      data_dir: the same as `cache_dir`, and used instead of it if given. The folder has list_eval_partition.txt,
        list_attr_celeba.txt, and the images as img_align_celeba.zip or in the folder img_align_celeba.
      include_attributes: whether elements have attributes.
      image_archive_url, partition_url, attributes_url: where to download from. A file from another URL than the default
        is not compared with the published MD5.
    """

    split: Literal["train", "valid", "test"] = "train"
    cache_dir: Any = None
    data_dir: Any = None
    include_attributes: bool = True
    image_archive_url: str = IMAGES.url
    partition_url: str = PARTITION.url
    attributes_url: str = ATTRIBUTES.url

    def __post_init__(self) -> None:
        faces = find_faces(**{each.name: getattr(self, each.name) for each in fields(self)})
        self.attribute_names = faces.attribute_names
        self._arrays = {"image": faces.decode_images()}
        if faces.attributes is not None:
            self._arrays["attributes"] = faces.attributes

    def __len__(self) -> int:
        return len(self._arrays["image"])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {key: array[index] for key, array in self._arrays.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all images and attributes."""
        return dict(self._arrays)

    def as_array_dict(self) -> dict[str, np.ndarray]:
        """Return all images and attributes."""
        return self.arrays()

    @classmethod
    def make_disk_source(
        cls, *, ordering: Ordering = "shuffle", prefetch_size: int = 64, **arguments: Any
    ) -> DiskSource:
        """Return a source that decodes images when the loader needs them. It takes the data set's arguments too."""
        checks.choice(ordering, Ordering, "ordering")  # before anything is downloaded
        faces = find_faces(**arguments)
        return DiskSource(len(faces.names), faces.read_element, ordering=ordering, prefetch_size=prefetch_size)


def find_faces(
    split: Literal["train", "valid", "test"] = "train",
    cache_dir: Any = None,
    data_dir: Any = None,
    include_attributes: bool = True,
    image_archive_url: str = IMAGES.url,
    partition_url: str = PARTITION.url,
    attributes_url: str = ATTRIBUTES.url,
) -> Faces:
    """Find or download the files of a split, and read the names and attributes of its images."""
    checks.choice(split, SPLITS, "split")
    root = downloads.get_cache_folder("celeba", cache_dir if data_dir is None else data_dir)
    names = read_partition(downloads.fetch(_change_url(PARTITION, partition_url), root), split)
    attributes, attribute_names = None, ()
    if include_attributes:
        attributes, attribute_names = read_attributes(
            downloads.fetch(_change_url(ATTRIBUTES, attributes_url), root), names
        )
    location, present, read = _open_images(root, image_archive_url)
    missing = [name for name in names if name not in present]
    if missing:
        raise DamagedFile(
            f"{location} does not have all images of the split {split!r}: {len(missing)} of {len(names)} are missing, "
            f"the first is {missing[0]}. Add them, or delete {location}, and the archive is downloaded again."
        )
    return Faces(names, location, read, attributes, attribute_names)


def read_partition(path: Path, split: str) -> list[str]:
    """Return the names of the images of a split."""
    names = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        name, _, part = line.strip().partition(" ")
        if line.strip() and part.strip() not in SPLITS.values():
            raise DamagedFile(f"Line {number} of {path} is {line[:80]!r}, but should be a name, and then 0, 1 or 2.")
        if part.strip() == SPLITS[split]:
            names.append(name)
    if not names:
        raise DamagedFile(f"{path} has no image of the split {split!r}.")
    return names


def read_attributes(path: Path, wanted: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the attributes of these images, one row of 0 and 1 per image, and the names of the attributes."""
    count, names, *lines = [*path.read_text(encoding="utf-8", errors="replace").splitlines(), "", ""]
    rows = {name: values for name, _, values in (line.partition(" ") for line in lines if line.strip())}
    if count.strip() != str(len(rows)):
        raise DamagedFile(f"{path} has the attributes of {len(rows)} images, but its first line says {count[:80]!r}.")
    missing = [name for name in wanted if name not in rows]
    if missing:
        raise DamagedFile(f"{path} has no attributes for {missing[0]} and {len(missing) - 1} other images.")
    try:
        values = np.loadtxt([rows[name] for name in wanted], np.int32, comments=None, ndmin=2)
    except ValueError as error:
        raise DamagedFile(f"{path} has attributes that cannot be read: {error}") from error
    shape = len(wanted), len(names.split())
    if values.shape != shape or (abs(values) != 1).any():
        raise DamagedFile(
            f"{path} should have {shape[1]} attributes for each of {shape[0]} images, all of them -1 or 1; "
            f"it has {values.shape[1]} for {values.shape[0]} images, with the values {np.unique(values)[:5].tolist()}."
        )
    return (values + 1) // 2, tuple(names.split())


def _open_images(root: Path, url: str) -> tuple[Path, Collection[str], Callable[[str], bytes]]:
    """Return where the images are, their names, and a function that reads one: from a folder or from the archive."""
    folder = root / "img_align_celeba"
    if folder.is_dir():
        folder = folder / folder.name if (folder / folder.name).is_dir() else folder
        return folder, set(os.listdir(folder)), lambda name: (folder / name).read_bytes()
    path = downloads.fetch(_change_url(IMAGES, url), root)
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise DamagedFile(f"{path} is not a ZIP archive: {error}. Delete it to download it again.") from error
    members = {member.filename.rpartition("/")[2]: member for member in archive.infolist()}

    def read(name: str) -> bytes:
        check_record(members[name].file_size)  # zipfile never returns more than the size in the archive's index
        return archive.read(members[name])

    return path, members, read


def _change_url(remote: Remote, url: str) -> Remote:
    """Return the same file with another URL. Its checksum is then unknown."""
    return remote if url == remote.url else Remote(remote.name, url)
