"""JSON files of TFDS and RLDS folders, damaged or hostile: errors name the file, and nothing outside is read."""

import copy
import json
import random
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bushel import DamagedFile
from bushel._src.sources.tfds import JsonEntry, read_json
from bushel._src.trajectory.rlds.reader import RLDSBuilder
from bushel.sources import TFDSDataSource
from bushel.trajectory import write_rlds

DATA = Path(__file__).parent.parent / "data" / "tfds_mine.zip"
FILES = ("dataset_info.json", "features.json")


def read_tfds(folder):
    for split in ("train", "test"):
        source = TFDSDataSource(folder, split=split)
        [source[index] for index in range(min(len(source), 4))]


def read_rlds(folder):
    for images in ("lazy", "bytes"):
        for unpack in (False, True):
            episodes = RLDSBuilder("mine", folder).episodes("all", images=images, unpack=unpack)
            [episodes[index] for index in range(len(episodes))]
    RLDSBuilder("mine", folder).positions("train")
    return episodes.index(progress=False, cache_dir=folder / "cache").lengths()


@pytest.fixture(params=["tfds", "rlds"])
def prepared(request, tmp_path):
    """A folder, and a function that reads all of it."""
    folder = tmp_path / "whole"
    if request.param == "tfds":
        with zipfile.ZipFile(DATA) as archive:
            archive.extractall(folder)
        return folder, read_tfds
    steps = {
        "observation": {"image": np.zeros((3, 8, 8, 3), np.uint8), "state": np.ones((3, 2), np.float32)},
        "action": np.zeros((3, 2), np.float32),
        "language_instruction": np.array(["go"] * 3, object),
        "is_first": np.array([True, False, False]),
    }
    made = write_rlds(
        {"train": [{"steps": steps, "episode_metadata": {"file": "x"}}] * 3}, name="mine", data_dir=tmp_path
    ).path
    shutil.move(made, folder)
    return folder, read_rlds


def places(value, path=()):
    """Where a JSON value has values in it."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from places(entry, (*path, key))


OTHER = [None, True, 0, -1, 7, 10**6, 10**12, 10**30, 1.5, "", "x", "-3", "99999999999", "../../etc", "/etc", "*"]
OTHER += ["{SHARD_INDEX:999999999}", "{DATASET.__class__}", "f4,f4", "S100000000", "object", "float64", [], {}, [[]]]
OTHER += [["x"], [-1, -1], [10**9, 10**9], ["3"], [None], {"a": 1}, {"features": {}}, {"feature": {}}]
OTHER += [{"dimensions": ["5", None]}]


def changed(content, draw: random.Random):
    """The same with something else in one place: another value, a key that is gone or has another name."""
    content = copy.deepcopy(content)
    path = draw.choice([path for path in places(content) if path])
    holder = content
    for key in path[:-1]:
        holder = holder[key]
    match draw.randrange(4):
        case 0 | 1:
            holder[path[-1]] = copy.deepcopy(draw.choice(OTHER))
        case 2:
            del holder[path[-1]]
        case 3:
            if isinstance(holder, dict):
                holder[draw.choice(["x", "sequence", "tensor", "featuresDict", "image"])] = holder.pop(path[-1])
            else:
                holder += copy.deepcopy(holder)
    return content


def damaged(text: str, draw: random.Random) -> bytes:
    if draw.random() < 0.7:
        content = json.loads(text)
        for _ in range(draw.choice([1, 1, 1, 2])):
            content = changed(content, draw)
        return json.dumps(content).encode()
    data = bytearray(text.encode())
    place = draw.randrange(len(data))
    match draw.randrange(3):
        case 0:
            del data[place:]
        case 1:
            data[place] ^= 1 << draw.randrange(8)
        case 2:
            data[place : place + 30] = draw.randbytes(30)
    return bytes(data)


def check_damages(prepared, count, seed):
    """Any damage is told with the file's name or does no harm. Returns how often it was told."""
    folder, read = prepared
    draw, told = random.Random(seed), 0
    texts = {name: (folder / name).read_text() for name in FILES}
    for number in range(count):
        name = draw.choice(FILES)
        data = damaged(texts[name], draw)
        (folder / name).write_bytes(data)
        try:
            read(folder)
        except (ValueError, FileNotFoundError) as error:  # a DamagedFile is a ValueError
            assert type(error) in (ValueError, DamagedFile, FileNotFoundError), (number, error, data)
            assert str(folder) in str(error) or "mine" in str(error) or "split" in str(error), (number, error, data)
            told += 1
        except Exception as error:
            raise AssertionError(f"damage {number}: {data!r}") from error
        (folder / name).write_text(texts[name])
    return told


def test_damage_of_descriptions_is_told_or_harmless(prepared):
    read = prepared[1]
    read(prepared[0])
    assert check_damages(prepared, 300, seed=0) > 100


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_much_damage_of_descriptions_is_told_or_harmless(prepared):
    check_damages(prepared, 5_000, seed=1)


# Templates of file names.


@pytest.mark.parametrize(
    "template",
    [
        "../secret",
        "/etc/passwd",
        "a/../../secret",
        "~/secret",
        "{DATASET}/../{SPLIT}",
        "..",
        "",
        "*",
        "x[1:2]",
        "x?",
        "a\\b",
        "a//b",
        "x\0y",
        "{SHARD_INDEX:999999999}",
        "{SHARD_INDEX!r}",
        "{DATASET.__class__.__mro__}",
        "{0}",
        "{}",
        "{UNKNOWN}",
        "{",
        "x" * 5000,
    ],
)
def test_a_template_names_files_of_the_folder_alone(prepared, template):
    folder, read = prepared
    (folder.parent / "secret").write_bytes(b"")
    info = json.loads((folder / "dataset_info.json").read_text())
    for split in info["splits"]:
        split["filepathTemplate"] = template
    (folder / "dataset_info.json").write_text(json.dumps(info))
    if not template:  # TFDS's own
        read(folder)
        return
    with pytest.raises(
        DamagedFile, match=r"dataset_info\.json: splits\[0\]\.filepathTemplate (is not a template|names the)"
    ):
        read(folder)


def test_a_name_leads_nowhere_else_either(prepared):
    folder, read = prepared
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps(info | {"name": "../mine"}))
    with pytest.raises(ValueError, match=r"is not in the folder of the data set|holds the data set \.\./mine"):
        read(folder)


def test_templates_of_tfds_are_read(tmp_path):
    with zipfile.ZipFile(DATA) as archive:
        archive.extractall(tmp_path)
    info = json.loads((tmp_path / "dataset_info.json").read_text())
    for split in info["splits"]:
        split["filepathTemplate"] = "{DATASET}/{SPLIT}.{FILEFORMAT}_{SHARD_INDEX}_{NUM_SHARDS}"
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    (tmp_path / "mine").mkdir()
    for split in ("train", "test"):
        old = tmp_path / f"mine-{split}.array_record-00000-of-00001"
        old.rename(tmp_path / "mine" / f"{split}.array_record_00000_00001")
    read_tfds(tmp_path)


# What errors say.


def test_an_error_names_file_and_place(tmp_path):
    entry = JsonEntry({"splits": [{"name": "a"}, {"name": 3}]}, "f.json")
    with pytest.raises(DamagedFile, match=r"f\.json: splits\[1\]\.name must be a text, but is 3\."):
        [split["name"].text() for split in entry["splits"].list()]
    with pytest.raises(DamagedFile, match=r"f\.json: splits\[0\] must have an entry 'x', but has 'name'\."):
        entry["splits"].list()[0]["x"]
    (tmp_path / "x.json").write_text("[" * 100_000)
    with pytest.raises(DamagedFile, match=r"x\.json cannot be read as JSON"):
        read_json(str(tmp_path / "x.json"), None)
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(DamagedFile, match=r"x\.json: its content must be an object, but is \[\]\."):
        read_json(str(tmp_path / "x.json"), None)


@pytest.mark.parametrize("key", ["sequence", "featuresDict"])
def test_features_that_are_nested_too_deeply(prepared, key):
    folder, read = prepared
    spec = {"text": {}}
    for _ in range(300):
        spec = {"sequence": {"feature": spec}} if key == "sequence" else {"featuresDict": {"features": {"a": spec}}}
    features = json.loads((folder / "features.json").read_text())
    features["featuresDict"]["features"]["deep"] = spec
    (folder / "features.json").write_text(json.dumps(features))
    with pytest.raises(DamagedFile, match=r"features\.json: .* is nested too deeply"):
        read(folder)
