"""CelebA: faces and their attributes, from a folder of images or straight from the archive."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from bushel.jit.datasets import files
from bushel.jit.datasets.files import Remote
from bushel.jit.datasets.formats import Damaged
from bushel.jit.host import DiskSource
from bushel.jit.records import Records
from bushel.sources.limits import check_record
from bushel.sources.media import decode_image

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
IMAGES_OF_A_TASK = 256


@dataclass(frozen=True)
class Faces:
    """The images of a split by their number, decoded when they are asked for, and their attributes."""

    names: list[str]
    place: Path
    read: Callable[[str], bytes]
    attributes: np.ndarray | None
    attribute_names: tuple[str, ...]

    def image(self, number: int) -> np.ndarray:
        """An image as uint8 (rows, columns, colours)."""
        try:
            return decode_image(self.read(self.names[number]))
        except (ValueError, zipfile.BadZipFile) as error:
            raise Damaged(f"{self.names[number]} in {self.place} is damaged: {error}") from error

    def images(self) -> np.ndarray:
        """All images, decoded by several threads."""
        shape = self.image(0).shape
        images = np.empty((len(self.names), *shape), np.uint8)

        def fill(first: int) -> None:
            for number in range(first, min(first + IMAGES_OF_A_TASK, len(images))):
                image = self.image(number)
                if image.shape != shape:
                    raise Damaged(
                        f"{self.names[number]} in {self.place} has the shape {image.shape}, but {self.names[0]} "
                        f"has {shape}. All images must be of one size."
                    )
                images[number] = image

        with ThreadPoolExecutor() as pool:
            list(pool.map(fill, range(0, len(images), IMAGES_OF_A_TASK)))
        return images

    def element(self, number: int) -> dict[str, np.ndarray]:
        """An image with its attributes."""
        image = {"image": self.image(number)}
        return image if self.attributes is None else {**image, "attributes": self.attributes[number]}


@dataclass
class CelebADataset:
    """Faces: 162,770, 19,867 and 19,962 images of 218 x 178 in colour, with 40 attributes that are 0 or 1.

    Elements are {"image": uint8 (rows, columns, colours), "attributes": int32}. A split is decoded as a whole, which
    makes 19 GB of "train": `make_disk_source` decodes images when they are needed. Decoding needs `bushel[image]`.

    Args:
      split: "train", "valid" or "test".
      data_dir: the folder of the files, instead of `cache_dir`. In it are list_eval_partition.txt,
        list_attr_celeba.txt, and the images as img_align_celeba.zip or in the folder img_align_celeba.
      include_attributes: False leaves them out.
      image_archive_url, partition_url, attributes_url: where to download from; your own are not checked by an MD5.
    """

    split: str = "train"
    cache_dir: Any = None
    data_dir: Any = None
    include_attributes: bool = True
    image_archive_url: str = IMAGES.url
    partition_url: str = PARTITION.url
    attributes_url: str = ATTRIBUTES.url

    def __post_init__(self) -> None:
        faces = find_faces(**{each.name: getattr(self, each.name) for each in fields(self)})
        self.attribute_names = faces.attribute_names
        self._arrays = {"image": faces.images()}
        if faces.attributes is not None:
            self._arrays["attributes"] = faces.attributes

    def __len__(self) -> int:
        return len(self._arrays["image"])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {key: array[index] for key, array in self._arrays.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """All images and attributes."""
        return dict(self._arrays)

    def as_array_dict(self) -> dict[str, np.ndarray]:
        """All images and attributes."""
        return self.arrays()

    @classmethod
    def make_disk_source(cls, *, ordering: str = "shuffle", prefetch_size: int = 64, **arguments: Any) -> Records:
        """A source that decodes images when they are needed; it takes the arguments of the data set too."""
        faces = find_faces(**arguments)
        return DiskSource(len(faces.names), faces.element, ordering=ordering, prefetch_size=prefetch_size)


def find_faces(
    split: str = "train",
    cache_dir: Any = None,
    data_dir: Any = None,
    include_attributes: bool = True,
    image_archive_url: str = IMAGES.url,
    partition_url: str = PARTITION.url,
    attributes_url: str = ATTRIBUTES.url,
) -> Faces:
    """The faces of a split: their files, found or downloaded, and what the lists say of them."""
    if split not in SPLITS:
        raise ValueError(f"The splits of CelebA are 'train', 'valid' and 'test', got {split!r}.")
    root = files.cache_folder("celeba", cache_dir if data_dir is None else data_dir)
    names = read_partition(files.fetched(_from(PARTITION, partition_url), root), split)
    attributes, attribute_names = None, ()
    if include_attributes:
        attributes, attribute_names = read_attributes(files.fetched(_from(ATTRIBUTES, attributes_url), root), names)
    place, present, read = _images(root, image_archive_url)
    missing = [name for name in names if name not in present]
    if missing:
        raise Damaged(
            f"{place} has not all images of the split {split!r}: {len(missing)} of {len(names)} are missing, "
            f"the first is {missing[0]}. Complete it, or delete it to have the archive downloaded again."
        )
    return Faces(names, place, read, attributes, attribute_names)


def read_partition(path: Path, split: str) -> list[str]:
    """The names of the images of a split."""
    names = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        name, _, part = line.strip().partition(" ")
        if line.strip() and part.strip() not in SPLITS.values():
            raise Damaged(f"Line {number} of {path} is {line[:80]!r}, but should be a name and 0, 1 or 2.")
        if part.strip() == SPLITS[split]:
            names.append(name)
    if not names:
        raise Damaged(f"{path} has no image of the split {split!r}.")
    return names


def read_attributes(path: Path, wanted: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The attributes of these images as 0 and 1, one row for each, and the names of the attributes."""
    count, names, *lines = [*path.read_text(encoding="utf-8", errors="replace").splitlines(), "", ""]
    rows = {name: values for name, _, values in (line.partition(" ") for line in lines if line.strip())}
    if count.strip() != str(len(rows)):
        raise Damaged(f"{path} has the attributes of {len(rows)} images, but its first line says {count[:80]!r}.")
    missing = [name for name in wanted if name not in rows]
    if missing:
        raise Damaged(f"{path} has no attributes of {missing[0]}, and of {len(missing) - 1} other images.")
    try:
        values = np.loadtxt([rows[name] for name in wanted], np.int32, comments=None, ndmin=2)
    except ValueError as error:
        raise Damaged(f"{path} has attributes that cannot be read: {error}") from error
    shape = len(wanted), len(names.split())
    if values.shape != shape or (abs(values) != 1).any():
        raise Damaged(
            f"{path} should have {shape[1]} attributes of each of {shape[0]} images that are -1 or 1; "
            f"it has {values.shape[1]} of {values.shape[0]}, with the values {np.unique(values)[:5].tolist()}."
        )
    return (values + 1) // 2, tuple(names.split())


def _images(root: Path, url: str) -> tuple[Path, Collection[str], Callable[[str], bytes]]:
    """Where the images are, their names, and how to read one: from a folder, or from the archive."""
    folder = root / "img_align_celeba"
    if folder.is_dir():
        place = folder / folder.name if (folder / folder.name).is_dir() else folder
        return place, set(os.listdir(place)), lambda name: (place / name).read_bytes()
    path = files.fetched(_from(IMAGES, url), root)
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise Damaged(f"{path} is no archive: {error}. Delete it to have it downloaded again.") from error
    members = {member.filename.rpartition("/")[2]: member for member in archive.infolist()}

    def read(name: str) -> bytes:
        check_record(members[name].file_size)  # zipfile gives no more than that
        return archive.read(members[name])

    return path, members, read


def _from(remote: Remote, url: str) -> Remote:
    """The same file from elsewhere, of which no checksum is known."""
    return remote if url == remote.url else Remote(remote.name, url)
