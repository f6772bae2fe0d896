"""Data sets from files in the true formats: what is read, what is downloaded, and what is said of damaged files."""

from __future__ import annotations

import hashlib
import http.server
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers.image_files import cifar_records, idx, images_of, write_mnist, write_tar

from bushel._src.base.errors import DamagedFile
from bushel._src.base.shown_text import on_progress
from bushel._src.jit.datasets import downloads
from bushel._src.jit.datasets.downloads import Remote
from bushel._src.jit.datasets.image_datasets import FineExample
from bushel.jit import BatchTransform, DataLoader
from bushel.jit.cereal import dataset_to_jax
from bushel.jit.datasets import (
    CIFAR10Dataset,
    CIFAR100Dataset,
    EMNISTDataset,
    Example,
    FashionMNISTDataset,
    KMNISTDataset,
    MNISTDataset,
)

FAMILY = [MNISTDataset, FashionMNISTDataset, KMNISTDataset]


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("packed", [True, False])
def test_the_mnist_family_is_read(kind, packed, tmp_path):
    written = write_mnist(tmp_path, packed=packed)
    for split in ("train", "test"):
        images, labels = written[split]
        dataset = kind(split, cache_dir=tmp_path)
        assert len(dataset) == len(labels)
        assert dataset.arrays().image.shape == (len(labels), 28, 28, 1) and dataset.arrays().label.dtype == np.int32
        assert (dataset.arrays().image[..., 0] == images).all() and (dataset.arrays().label == labels).all()
        image, label = dataset[3]
        assert (image[..., 0] == images[3]).all() and label == labels[3]
        assert (dataset.as_array_dict()["image"] == dataset.arrays()["image"]).all()


def check_disk_source(source, images, labels):
    loader = DataLoader([source, BatchTransform(4)])
    seen = {}
    for batch, mask in loader.iterate(loader.init_state(0)):
        assert isinstance(batch, (Example, FineExample))
        for image, label, real in zip(np.asarray(batch.image), np.asarray(batch.label), mask, strict=True):
            if real:
                seen[image.tobytes()] = int(label)
    assert seen == {np.ascontiguousarray(image).tobytes(): int(label) for image, label in zip(images, labels)}


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_from_disk_is_mnist(packed, tmp_path):
    written = write_mnist(tmp_path, packed=packed)
    for _ in range(2):  # the second time it is unpacked already
        check_disk_source(
            MNISTDataset.make_disk_source(split="test", cache_dir=tmp_path, ordering="sequential"), *written["test"]
        )


@pytest.mark.parametrize("archived", [True, False])
def test_emnist_is_read(archived, tmp_path):
    folder = tmp_path / "gzip" if archived else tmp_path
    written = write_mnist(folder, names=("train", "test"), start="emnist-letters-")
    if archived:
        with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
            for path in folder.iterdir():
                archive.write(path, f"gzip/{path.name}")
                path.unlink()
    dataset = EMNISTDataset("letters", "test", cache_dir=tmp_path)
    assert (dataset.arrays().image[..., 0] == written["test"][0]).all()
    check_disk_source(
        EMNISTDataset.make_disk_source(subset="letters", split="test", cache_dir=tmp_path, ordering="sequential"),
        *written["test"],
    )
    with pytest.raises(ValueError, match='subset must be "balanced", "byclass"'):
        EMNISTDataset("greek", cache_dir=tmp_path)


def cifar_files(kind, count=6):
    """The members of an archive of CIFAR, and what is in its splits."""
    label_bytes, inside = (1, "cifar-10-batches-bin") if kind is CIFAR10Dataset else (2, "cifar-100-binary")
    names = {
        "train": [f"data_batch_{n}.bin" for n in range(1, 6)] if label_bytes == 1 else ["train.bin"],
        "test": ["test_batch.bin" if label_bytes == 1 else "test.bin"],
    }
    members, splits = {}, {}
    for split, files_of_split in names.items():
        parts = [cifar_records(count, seed, label_bytes) for seed, _ in enumerate(files_of_split)]
        members.update({f"{inside}/{name}": part[0] for name, part in zip(files_of_split, parts, strict=True)})
        splits[split] = tuple(np.concatenate([part[k] for part in parts]) for k in (1, 2, 3))
    return members, splits


@pytest.mark.parametrize("kind", [CIFAR10Dataset, CIFAR100Dataset])
@pytest.mark.parametrize("archived", [True, False])
def test_cifar_is_read(kind, archived, tmp_path):
    members, splits = cifar_files(kind)
    if archived:
        write_tar(tmp_path / kind.files.remote.name, members)
    else:
        for name, data in members.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(data)
    for split, (images, labels, coarse) in splits.items():
        dataset = kind(split, cache_dir=tmp_path)
        if kind is CIFAR100Dataset:
            assert (dataset.as_array_dict()["coarse_label"] == coarse).all() and dataset[2].coarse_label == coarse[2]
            disk = kind.make_disk_source(split=split, cache_dir=tmp_path, ordering="sequential")
            assert disk.next(disk.init_state())[0]["coarse_label"] == coarse[0]
        assert (dataset.arrays().image == images).all() and (dataset.arrays().label == labels).all()
        check_disk_source(kind.make_disk_source(split=split, cache_dir=tmp_path, ordering="sequential"), images, labels)


def test_a_data_set_becomes_arrays_of_jax(tmp_path):
    _, labels = write_mnist(tmp_path)["train"]
    stacked = dataset_to_jax(MNISTDataset("train", cache_dir=tmp_path))
    assert isinstance(stacked, Example) and (np.asarray(stacked["label"]) == labels).all()
    assert stacked.image.dtype == np.uint8 and stacked.image.shape == (30, 28, 28, 1)


@pytest.mark.skipif(
    not any(place.is_dir() for place in FashionMNISTDataset.files.also_in), reason="dataset-fashion-mnist is not there"
)
def test_debians_fashion_mnist_is_found(tmp_path):
    dataset = FashionMNISTDataset("test", cache_dir=tmp_path)
    assert len(dataset) == 10_000 and sorted(set(dataset.arrays().label.tolist())) == list(range(10))


# ---------------------------------------------------------------------------------------------------------------------
# Damaged files


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize(
    ("packed", "damage", "sentence"),
    [
        (True, cut, "cannot be read to its end"),
        (False, cut, "but its header announces"),
        (False, lambda path: path.write_bytes(b"abc"), "is not an IDX file: it has only 3 bytes"),
        (False, lambda path: path.write_bytes(idx(np.zeros((2, 2), np.uint8)) * 9), "is not an IDX file of 3 axes"),
        (False, lambda path: path.write_bytes(idx(images_of(7, 0)[0])), "have 7 images but 30 labels"),
    ],
)
def test_damaged_files_are_told(packed, damage, sentence, tmp_path):
    write_mnist(tmp_path, packed=packed)
    damage(next(tmp_path.glob("train-images*")))
    with pytest.raises(DamagedFile) as raised:
        MNISTDataset("train", cache_dir=tmp_path)
    assert sentence in str(raised.value) and str(tmp_path) in str(raised.value)


def test_damaged_archives_are_told(tmp_path):
    members, _ = cifar_files(CIFAR100Dataset)
    write_tar(
        tmp_path / "cifar-100-binary.tar.gz", {"cifar-100-binary/train.bin": members["cifar-100-binary/test.bin"]}
    )
    with pytest.raises(DamagedFile, match="is incomplete"):
        CIFAR100Dataset("test", cache_dir=tmp_path)
    (tmp_path / "cifar-100-binary" / "train.bin").unlink(missing_ok=True)
    write_tar(tmp_path / "cifar-100-binary.tar.gz", {"cifar-100-binary/train.bin": b"x" * 100})
    with pytest.raises(DamagedFile, match="has 100 bytes, which is not a multiple of a record's 3074 bytes"):
        CIFAR100Dataset("train", cache_dir=tmp_path)


def test_there_are_two_splits(tmp_path):
    with pytest.raises(ValueError, match=r'split must be "train" or "test", got .validation'):
        MNISTDataset("validation", cache_dir=tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# Downloads, from a server of this machine


@pytest.fixture
def server(tmp_path):
    root = tmp_path / "www"
    root.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(root))

        def log_message(self, format, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield root, f"http://127.0.0.1:{running.server_address[1]}/"
        running.shutdown()
        thread.join()


def test_a_file_is_downloaded_once_and_whole(server, tmp_path):
    root, url = server
    (root / "data.bin").write_bytes(b"x" * 3_000_000)
    remote = Remote("data.bin", url + "data.bin", hashlib.md5(b"x" * 3_000_000).hexdigest())
    seen = []
    with on_progress(lambda *facts: seen.append(facts)):
        path = downloads.fetch(remote, tmp_path / "cache")
    assert path.read_bytes() == b"x" * 3_000_000
    assert seen[-1] == ("downloading data.bin", 3_000_000, 3_000_000) and len(seen) >= 3
    (root / "data.bin").unlink()
    assert downloads.fetch(remote, tmp_path / "cache") == path
    assert [each.name for each in (tmp_path / "cache").iterdir()] == ["data.bin"]


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    root, url = server
    (root / "data.bin").write_bytes(b"other")
    with pytest.raises(FileNotFoundError, match=r"Its MD5 is .* but should be 123\."):
        downloads.fetch(Remote("data.bin", url + "data.bin", "123"), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_file_without_a_checksum_must_be_whole(server, tmp_path, monkeypatch):
    root, url = server
    (root / "data.bin").write_bytes(b"x" * 1000)
    remote = Remote("data.bin", url + "data.bin")
    assert downloads.fetch(remote, tmp_path / "whole").read_bytes() == b"x" * 1000
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "copyfile", lambda self, source, out: out.write(b"x" * 9))
    with pytest.raises(FileNotFoundError, match=r"The connection ended after 9 of 1000 bytes\."):
        downloads.fetch(remote, tmp_path / "cut")
    assert list((tmp_path / "cut").iterdir()) == []


def test_an_address_that_is_none_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="unknown url type: 'nowhere'"):
        downloads.fetch(Remote("data.bin", "nowhere"), tmp_path)


def test_without_a_network_the_place_is_told(tmp_path):
    remote = Remote("data.bin", "http://127.0.0.1:9/data.bin", "123")
    with pytest.raises(FileNotFoundError) as raised:
        downloads.fetch(remote, tmp_path / "cache")
    assert f"data.bin is not in {tmp_path / 'cache'}" in str(raised.value)
    assert "put it into that folder" in str(raised.value)
    assert "disk" not in str(raised.value)


def test_the_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert downloads.get_cache_folder("mnist", None) == tmp_path / "bushel" / "mnist"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert downloads.get_cache_folder("mnist", None) == Path("~/.cache/bushel/mnist").expanduser()
