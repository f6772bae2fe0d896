"""CelebA from JPEG files and archives: equal to what cyreal reads, and what is said of damaged files."""

from __future__ import annotations

import inspect
import io
import zipfile

import cyreal.datasets
import numpy as np
import pytest
from PIL import Image

from bushel._src.base.errors import DamagedFile
from bushel._src.jit.datasets import celeba, downloads
from bushel.jit import BatchTransform, DataLoader
from bushel.jit.cereal import dataset_to_jax
from bushel.jit.datasets import CelebADataset

PARTS = [0] * 7 + [1] * 2 + [2] * 3
NAMES = [f"{number:06}.jpg" for number in range(1, len(PARTS) + 1)]
KINDS = ["5_o_Clock_Shadow", "Smiling", "Young"]


def jpeg(number, size=(11, 9)):
    pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()


def write_celeba(folder, images="folder"):
    """The files of CelebA with fewer and smaller images, which are in a folder, in a folder in it, or in an archive."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {name: jpeg(number) for number, name in enumerate(NAMES)}
    if images == "archive":
        with zipfile.ZipFile(folder / "img_align_celeba.zip", "w") as archive:
            archive.writestr("img_align_celeba/", b"")
            for name, data in pictures.items():
                archive.writestr(f"img_align_celeba/{name}", data)
    else:
        place = folder / ("img_align_celeba" if images == "folder" else "img_align_celeba/img_align_celeba")
        place.mkdir(parents=True)
        for name, data in pictures.items():
            (place / name).write_bytes(data)
    lines = [f"{name} {part}" for name, part in zip(NAMES, PARTS, strict=True)]
    (folder / "list_eval_partition.txt").write_text("\n".join(lines) + "\n")
    signs = np.random.default_rng(0).choice([-1, 1], (len(NAMES), len(KINDS)))
    rows = [f"{name} " + " ".join(f"{sign:2}" for sign in row) for name, row in zip(NAMES, signs, strict=True)]
    (folder / "list_attr_celeba.txt").write_text("\n".join([str(len(NAMES)), " ".join(KINDS) + " ", *rows]) + "\n")


def same(ours, other):
    assert ours.keys() == other.keys()
    for key, value in ours.items():
        expected = np.asarray(other[key])
        assert value.dtype == expected.dtype and value.shape == expected.shape and (value == expected).all()


@pytest.mark.parametrize("images", ["archive", "folder", "nested"])
@pytest.mark.parametrize("include_attributes", [True, False])
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_celeba_is_read_as_cyreal_reads_it(images, include_attributes, split, tmp_path):
    write_celeba(tmp_path, images)
    ours = CelebADataset(split, cache_dir=tmp_path, include_attributes=include_attributes)
    assert images != "archive" or not (tmp_path / "img_align_celeba").exists()  # nothing is unpacked
    other = cyreal.datasets.CelebADataset(split, data_dir=tmp_path, include_attributes=include_attributes)
    assert len(ours) == len(other) == PARTS.count(["train", "valid", "test"].index(split))
    assert ours.attribute_names == other.attribute_names
    same(ours.as_array_dict(), other.as_array_dict())
    same(ours[1], other[1])


def test_the_arguments_are_cyreals():
    def arguments(function):
        return [(each.name, each.default) for each in inspect.signature(function).parameters.values()]

    theirs = cyreal.datasets.CelebADataset
    assert arguments(CelebADataset) == arguments(theirs)
    assert arguments(celeba.find_faces) == arguments(theirs.make_disk_source)[:-2]


@pytest.mark.parametrize("images", ["archive", "folder"])
@pytest.mark.parametrize("include_attributes", [True, False])
def test_celeba_from_disk_is_celeba(images, include_attributes, tmp_path, monkeypatch):
    write_celeba(tmp_path, images)
    monkeypatch.setattr(celeba, "IMAGES_PER_TASK", 2)
    arguments = {"split": "train", "data_dir": tmp_path, "include_attributes": include_attributes}
    whole = dataset_to_jax(CelebADataset(**arguments))
    loader = DataLoader(
        [
            CelebADataset.make_disk_source(**arguments, ordering="sequential", prefetch_size=4),
            BatchTransform(4),
        ]
    )
    seen = {key: [] for key in whole}
    for batch, mask in loader.iterate(loader.init_state(0)):
        for key, rows in seen.items():
            rows.append(np.asarray(batch[key])[np.asarray(mask)])
    same({key: np.concatenate(rows) for key, rows in seen.items()}, whole)


def test_files_from_elsewhere_have_no_checksum(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    write_celeba(there, "archive")
    urls = {
        "image_archive_url": (there / "img_align_celeba.zip").as_uri(),
        "partition_url": (there / "list_eval_partition.txt").as_uri(),
        "attributes_url": (there / "list_attr_celeba.txt").as_uri(),
    }
    same(CelebADataset("test", here, **urls).arrays(), CelebADataset("test", there).arrays())
    assert sorted(path.name for path in here.iterdir()) == sorted(path.name for path in there.iterdir())


def test_without_a_network_the_place_is_told(tmp_path, monkeypatch):
    def nowhere(*arguments, **options):
        raise OSError("no network")

    monkeypatch.setattr(downloads.urllib.request, "urlopen", nowhere)
    for name in ("list_eval_partition.txt", "list_attr_celeba.txt", "img_align_celeba.zip"):
        write_celeba(tmp_path / name, "archive")
        (tmp_path / name / name).unlink()
        with pytest.raises(FileNotFoundError) as raised:
            CelebADataset(cache_dir=tmp_path / name)
        assert f"{name} is not in {tmp_path / name}" in str(raised.value)


def replace(old, new):
    return lambda path: path.write_text(path.read_text().replace(old, new))


def cut(path):
    """Takes the attributes of the fifth image away."""
    lines = path.read_text().splitlines()
    lines[6] = "000005.jpg"
    path.write_text("\n".join(lines))


def flip(path):
    """Changes a byte of the first image in an archive."""
    data = bytearray(path.read_bytes())
    data[data.index(b"\xff\xd8\xff") + 200] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("images", "name", "damage", "sentence"),
    [
        ("folder", "list_eval_partition.txt", replace("7.jpg 0", "7.jpg"), "Line 7 of"),
        ("folder", "list_eval_partition.txt", replace(" 0", " 1"), "has no image of the split 'train'"),
        (
            "folder",
            "list_eval_partition.txt",
            replace("000003.jpg", "../3.jpg"),
            "has no attributes for ../3.jpg and 0 other images.",
        ),
        ("folder", "list_attr_celeba.txt", replace("12\n", "13\n"), "of 12 images, but its first line says '13'"),
        ("folder", "list_attr_celeba.txt", lambda path: path.write_text(""), "of 0 images, but its first line says ''"),
        ("folder", "list_attr_celeba.txt", cut, "it has 3 for 6 images, with the values [-1, 1]"),
        ("folder", "list_attr_celeba.txt", lambda path: path.write_bytes(b"\xff" * 9), "of 0 images"),
        ("folder", "list_attr_celeba.txt", replace("Young", ""), "should have 2 attributes for each of 7 images"),
        (
            "folder",
            "list_attr_celeba.txt",
            replace("-1", "-2"),
            "all of them -1 or 1; it has 3 for 7 images, with the values [-2, 1]",
        ),
        ("folder", "list_attr_celeba.txt", replace("-1", "no"), "has attributes that cannot be read"),
        (
            "folder",
            "img_align_celeba/000002.jpg",
            lambda path: path.unlink(),
            "1 of 7 are missing, the first is 000002",
        ),
        ("folder", "img_align_celeba/000002.jpg", lambda path: path.write_bytes(b"abc"), "000002.jpg in"),
        (
            "folder",
            "img_align_celeba/000002.jpg",
            lambda path: path.write_bytes(jpeg(1, (9, 9))),
            "must have the same size",
        ),
        ("archive", "img_align_celeba.zip", lambda path: path.write_bytes(b"<html>"), "is not a ZIP archive"),
        ("archive", "img_align_celeba.zip", flip, "000001.jpg in"),
    ],
)
def test_damaged_files_are_told(images, name, damage, sentence, tmp_path):
    write_celeba(tmp_path, images)
    damage(tmp_path / name)
    with pytest.raises(DamagedFile) as raised:
        CelebADataset(cache_dir=tmp_path)
    assert sentence in str(raised.value) and str(tmp_path) in str(raised.value)


def test_there_are_three_splits(tmp_path):
    with pytest.raises(ValueError, match=r'split must be "train", "valid" or "test", got .val'):
        CelebADataset("val", cache_dir=tmp_path)
