"""RLDS data sets: read as dlimp reads them (golden files), written and read back, frame by frame, damaged, remote."""

import io
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.numpy_versions import STRING_DTYPES
from helpers.servers import BUCKET, s3
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from bushel import MapDataset, MultiprocessingOptions
from bushel._src.base.errors import DamagedFile
from bushel._src.sources.protocol_buffers import locate_example
from bushel._src.sources.tfds import JsonEntry
from bushel._src.trajectory import encoded_images
from bushel._src.trajectory.encoded_images import Encoded, RecordSpans, read_all
from bushel._src.trajectory.episode_builder import parse_split
from bushel._src.trajectory.rlds.dataset_folder import Values, find_folder, parse_features
from bushel._src.trajectory.rlds.reader import RLDSBuilder, count_stored_steps, index_episodes
from bushel._src.trajectory.rlds.writer import write_rlds
from bushel.sources import TFRecordDataSource, decode_image, encode_example
from bushel.testing import same

GOLDEN = Path(__file__).parent / "golden"
QUICK = settings(max_examples=25, deadline=None)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BUSHEL_CACHE_DIR", str(tmp_path / "cache"))


def flatten_tree(tree, path=""):
    """The leaves of a tree by their path."""
    found = {}
    for key, value in tree.items():
        found |= flatten_tree(value, f"{path}{key}/") if isinstance(value, dict) else {path + key: value}
    return found


def plain(tree):
    """A trajectory with its images read, so that it can be compared."""
    return {
        path: np.array([*read_all(leaf.ravel().tolist()), None], object)[:-1] if leaf.dtype == object else leaf
        for path, leaf in flatten_tree(tree).items()
    }


def equal(one, other):
    return one.keys() == other.keys() and all(
        one[path].dtype == other[path].dtype
        and np.array_equal(one[path], other[path], equal_nan=one[path].dtype.kind == "f")
        for path in one
    )


# What dlimp gives for the same files.


@pytest.mark.parametrize("mode", ["lazy", "indexed", "bytes"])
def test_trajectories_are_those_of_dlimp(mode):
    inputs = np.load(GOLDEN / "inputs" / "synth_rlds.npz")
    facts = json.loads((GOLDEN / "inputs" / "rlds_element_spec.json").read_text())
    episodes = RLDSBuilder("synth_rlds", GOLDEN / "tfds").episodes("all", images="bytes" if mode == "bytes" else "lazy")
    if mode == "indexed":
        episodes.index()
    order = []
    for place in range(len(episodes)):
        trajectory = flatten_tree(episodes[place])
        order.append(int(trajectory["traj_metadata/episode_metadata/episode_id"][0]))
        assert trajectory.keys() == facts["spec"].keys()
        for path, leaf in trajectory.items():
            kind, shape = facts["spec"][path]
            assert ("string" if leaf.dtype == object else str(leaf.dtype)) == kind
            assert list(leaf.shape[1:]) == shape[1:]
            key = f"ep{order[-1]}/{path}"
            if f"{key}@bytes" in inputs:
                ends = inputs[f"{key}@offsets"].tolist()
                data = inputs[f"{key}@bytes"].tobytes()
                assert list(leaf) == [data[low:high] for low, high in itertools.pairwise(ends)]
            else:
                assert leaf.tolist() == inputs[key].tolist()
    assert order == facts["file_order_episode_ids"]
    assert episodes.lengths().tolist() == [len(episodes[place]["_len"]) for place in range(len(episodes))]


def test_an_episode_without_steps():
    wanted = json.loads((GOLDEN / "meta" / "filters_splits_language.json").read_text())
    episodes = RLDSBuilder("synth_rlds_edge", GOLDEN / "tfds").episodes()
    assert [n for n in episodes.lengths().tolist() if n] == wanted["edge_lengths_after_is_nonzero_length"]
    empty = flatten_tree(episodes[episodes.lengths().tolist().index(0)])
    assert {path: leaf.shape[1:] for path, leaf in empty.items()} == {
        path: leaf.shape[1:] for path, leaf in flatten_tree(episodes[0]).items()
    }
    assert {len(leaf) for leaf in empty.values()} == {0}


# Written and read back.

DTYPES = ["bool", "int8", "int32", "int64", "uint8", "uint64", "float16", "float32"]


@st.composite
def leaf_kinds(draw):
    """What a leaf is, in every episode: texts, images or numbers of a dtype and shape."""
    kind = draw(st.sampled_from(["numbers", "numbers", "texts", "images"]))
    shape = draw(st.lists(st.integers(0, 3), max_size=2))
    return kind, draw(st.sampled_from(DTYPES)), tuple(shape)


@st.composite
def leaf_values(draw, kind, length):
    what, dtype, shape = kind
    if what == "texts":
        return draw(st.lists(st.text(max_size=5) | st.binary(max_size=5), min_size=length, max_size=length))
    if what == "images":
        return draw(arrays.arrays(np.uint8, (length, 3, 2, 3)))
    return draw(arrays.arrays(dtype, (length, *shape)))


@st.composite
def datasets(draw):
    """Episodes with the same random leaves, some of them in dicts."""
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=4))
    kinds = {name: draw(leaf_kinds()) for name in names}
    inner = draw(st.sets(st.sampled_from(names))) if names else set()
    metadata = {name: draw(leaf_kinds().filter(lambda kind: kind[0] == "numbers")) for name in "mn"}
    episodes = []
    for number in range(draw(st.integers(1, 5))):
        length = draw(st.integers(0, 4))
        steps = {name: draw(leaf_values(kinds[name], length)) for name in names}
        steps = {name: as_texts(value) if kinds[name][0] == "texts" else value for name, value in steps.items()}
        tree = {name: value for name, value in steps.items() if name not in inner}
        tree |= {"observation": {name: steps[name] for name in inner}} if inner else {}
        tree["is_first"] = np.arange(length) == 0
        facts = {name: draw(leaf_values(kind, 1))[0] for name, kind in metadata.items()}
        episodes.append({"steps": tree, "episode_metadata": {"number": number, "text": f"é{number}", **facts}})
    return episodes


def as_texts(values):
    found = np.empty(len(values), object)
    found[:] = values
    return found


def expected(episode, place):
    """The trajectory that an episode should be read as; images as pixels."""
    steps = {path: _leaf(leaf) for path, leaf in flatten_tree(episode["steps"]).items()}
    length = len(steps["is_first"])
    for name, value in episode["episode_metadata"].items():
        repeated = as_texts([value.encode()] * length) if isinstance(value, str) else np.repeat([value], length, axis=0)
        steps[f"traj_metadata/episode_metadata/{name}"] = repeated
    return steps | {
        "_len": np.full(length, length, np.int32),
        "_traj_index": np.full(length, place, np.int64),
        "_frame_index": np.arange(length, dtype=np.int32),
    }


def _leaf(leaf):
    return as_texts([v.encode() if isinstance(v, str) else v for v in leaf]) if leaf.dtype == object else leaf


def pixels(tree, wanted):
    """A trajectory with its images decoded where pixels are expected."""
    return {
        path: np.array([decode_image(v) for v in leaf], np.uint8).reshape(-1, 3, 2, 3)
        if path in wanted and wanted[path].shape[1:] == (3, 2, 3) and wanted[path].dtype == np.uint8
        else leaf
        for path, leaf in plain(tree).items()
    }


@QUICK
@given(episodes=datasets(), shards=st.integers(1, 3), kind=st.sampled_from(["tfrecord", "array_record"]))
def test_what_was_written_is_read(episodes, shards, kind):
    with tempfile.TemporaryDirectory() as folder:
        half = len(episodes) // 2
        splits = {"train": episodes[half:]} | ({"val": episodes[:half]} if half else {})
        write_rlds(splits, name="mine", data_dir=folder, shards=shards, file_format=kind)
        builder = RLDSBuilder("mine", folder)
        assert builder.splits == {split: len(rows) for split, rows in splits.items()}
        for split, rows in splits.items():
            found, read = builder.episodes(split), builder.episodes(split, images="bytes")
            before = [plain(found[place]) for place in range(len(rows))]
            found.index(progress=False, cache_dir=f"{folder}/cache")
            for place, episode in enumerate(rows):
                wanted = expected(episode, place)
                assert equal(pixels(found[place], wanted), wanted)
                assert equal(plain(found[place]), before[place])
                assert equal(plain(read[place]), before[place])


@QUICK
@given(episodes=datasets(), kind=st.sampled_from(["tfrecord", "array_record"]))
def test_a_frame_alone_is_the_frame_of_its_episode(episodes, kind):
    with tempfile.TemporaryDirectory() as folder:
        write_rlds({"train": episodes}, name="mine", data_dir=folder, shards=2, file_format=kind)
        found = RLDSBuilder("mine", folder).episodes("train[1:]+train[:1]" if len(episodes) > 1 else "train")
        found.index(progress=False, cache_dir=f"{folder}/cache")
        for path in found.image_paths:
            table = found.frames(path)
            assert len(table) == found.lengths().sum()
            alone = found.parts.read(*table.T)
            whole = [value for place in range(len(found)) for value in plain(found[place])[path]]
            assert alone == whole
            assert [bytes(Encoded(found.parts, *place)) for place in table.tolist()] == whole


def test_texts_of_any_kind_are_written_as_bytes(tmp_path):
    words = np.array(["go", "", "stop"])
    for name, kind in zip(("bytes", "text", "string"), ("S", "U", *STRING_DTYPES)):
        write_rlds({"train": [{"steps": {"words": words.astype(kind)}}]}, name=name, data_dir=tmp_path)
        (read,) = RLDSBuilder(name, tmp_path).episodes("train")
        assert read["words"].tolist() == [b"go", b"", b"stop"]


def test_numbers_as_tfds_stores_them(tmp_path):
    steps = {"x": np.array([1 / 3, 2.0]), "big": np.array([2**64 - 1, 0], np.uint64), "t": np.array([["a", "b"]] * 2)}
    write_rlds({"train": [{"steps": steps}]}, name="mine", data_dir=tmp_path)
    found = RLDSBuilder("mine", tmp_path).episodes()[0]
    assert found["x"].dtype == np.float64 and same(found["x"], np.float32([1 / 3, 2.0]).astype(np.float64))
    assert same(found["big"], steps["big"])
    assert found["t"].tolist() == [[b"a", b"b"]] * 2 and found["t"].dtype == object


def test_images_that_are_encoded_stay_as_they_are(tmp_path):
    golden = RLDSBuilder("synth_rlds", GOLDEN / "tfds")
    trajectory = golden.episodes()[1]
    observation = trajectory["observation"]
    steps = {"image": observation["image"], "depth": read_all(observation["depth"]), "action": trajectory["action"]}
    folder = write_rlds({"train": [{"steps": steps}]}, name="mine", data_dir=tmp_path).path
    found = RLDSBuilder("mine", tmp_path).episodes()[0]
    assert list(found["image"]) == list(observation["image"]) and list(found["depth"]) == list(observation["depth"])
    described = json.loads(Path(folder, "features.json").read_text())["featuresDict"]["features"]["steps"]
    images = described["sequence"]["feature"]["featuresDict"]["features"]
    assert images["image"]["image"] == {
        "shape": {"dimensions": ["32", "32", "3"]},
        "dtype": "uint8",
        "encodingFormat": "jpeg",
    }
    assert images["depth"]["image"] == {
        "shape": {"dimensions": ["16", "20", "1"]},
        "dtype": "uint16",
        "encodingFormat": "png",
    }


def test_image_formats(tmp_path):
    scene = np.linspace(0, 255, 40 * 30 * 3).reshape(1, 40, 30, 3).astype(np.uint8)
    depth = np.arange(40 * 30, dtype=np.uint16).reshape(1, 40, 30, 1) * 50
    formats = {"observation/a": "jpeg"}
    steps = {"observation": {"a": scene, "b": scene, "depth": depth}}
    write_rlds({"train": [{"steps": steps}]}, name="mine", data_dir=tmp_path, image_format=formats)
    found = RLDSBuilder("mine", tmp_path).episodes()[0]["observation"]
    assert bytes(found["a"][0])[:3] == b"\xff\xd8\xff"
    assert np.abs(decode_image(bytes(found["a"][0])).astype(int) - scene[0]).max() < 20
    assert same(decode_image(bytes(found["b"][0])), scene[0])
    assert same(decode_image(bytes(found["depth"][0]), None).astype(np.uint16), depth[0])
    with pytest.raises(ValueError, match=r'image_format must be "png" or "jpeg", got .gif'):
        write_rlds({"train": [{"steps": steps}]}, name="other", data_dir=tmp_path, image_format="gif")
    with pytest.raises(ValueError, match=r"uint16 of \[40, 30, 1\] cannot be a JPEG image. Choose 'png'."):
        write_rlds({"train": [{"steps": steps}]}, name="other", data_dir=tmp_path, image_format="jpeg")
    assert os.listdir(tmp_path) == ["mine"]


def ones(length, **more):
    return {"steps": {"x": np.ones((length, 2), np.float32), **more}, "episode_metadata": {"id": length}}


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"name": "a/b"}, ValueError, "The name of a data set may have letters, digits and underscores, got 'a/b'."),
        ({"version": "1"}, ValueError, "version must be three numbers such as '1.0.0', got '1'."),
        ({"file_format": "csv"}, ValueError, 'file_format must be "tfrecord" or "array_record", got \'csv\'.'),
        ({"shards": 0}, ValueError, "shards"),
        ({"splits": {}}, ValueError, "splits is empty: pass episodes as"),
        ({"splits": {"all": []}}, ValueError, "and must not be 'all', got 'all'"),
        ({"splits": {"train": []}}, ValueError, "The split 'train' has no episodes. Leave it out."),
        ({"splits": {"train": iter([])}, "shards": 2}, ValueError, "the number of episodes must be known"),
        ({"splits": {"train": [3]}}, ValueError, "episode 0 of 'train': an episode must be a dict with 'steps'"),
        ({"splits": {"train": [ones(1), ones(2, y=[1, 2])]}}, ValueError, "only one of them has steps/y"),
        ({"splits": {"train": [ones(2, y=[1])]}}, ValueError, "steps/y has 1 steps, and steps/x has 2"),
        ({"splits": {"train": [ones(2, y=1)]}}, ValueError, "steps/y has no axis of steps"),
        (
            {"splits": {"train": [ones(1, y=[1]), ones(1, y=[1.5])]}},
            ValueError,
            "steps/y is float64 of .* and int64 of",
        ),
        (
            {"splits": {"train": [ones(1, y=[None])]}},
            TypeError,
            "should be numbers, bytes or strings, got NoneType in it",
        ),
        ({"splits": {"train": [ones(1, y=[1j])]}}, TypeError, "should be numbers, bytes or strings, got complex128"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(tmp_path, arguments, error, sentence):
    given = {"name": "mine", "splits": {"train": [ones(1)]}} | arguments
    with pytest.raises(error, match=sentence):
        write_rlds(data_dir=tmp_path, **given)
    assert list(tmp_path.iterdir()) == []


def test_a_writer_takes_streams_and_replaces_nothing(tmp_path):
    folder = write_rlds({"train": (ones(length) for length in range(5))}, name="mine", data_dir=tmp_path).path
    assert RLDSBuilder("mine", tmp_path).episodes().lengths().tolist() == list(range(5))
    with pytest.raises(FileExistsError, match=r"exists already. Remove it, or write another version"):
        write_rlds({"train": [ones(1)]}, name="mine", data_dir=tmp_path)
    write_rlds({"train": [ones(1)]}, name="mine", data_dir=tmp_path, version="1.10.0", shards=9)
    write_rlds({"train": [ones(1)]}, name="mine", data_dir=tmp_path, version="1.9.0")
    assert RLDSBuilder("mine", tmp_path).version == "1.10.0"
    for name in ("mine:1.0.0", "mine/1.0.0"):
        assert RLDSBuilder(name, tmp_path).folder == folder
    assert RLDSBuilder("mine", folder).version == "1.0.0"
    with pytest.raises(
        ValueError, match=r"holds the data set mine 1.0.0, not yours. Give the folder above it as data_dir."
    ):
        RLDSBuilder("yours", folder)
    with pytest.raises(
        FileNotFoundError, match=r"no prepared data set 'mine:2.0.0'.*are there: 1.0.0, 1.10.0, 1.9.0\."
    ):
        RLDSBuilder("mine:2.0.0", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no prepared data set 'yours'.*\. These data sets are there: mine"):
        RLDSBuilder("yours", tmp_path)


def test_a_data_set_with_several_configs_asks_for_one(tmp_path):
    folder = write_rlds({"train": [ones(1)]}, name="mine", data_dir=tmp_path / "made").path
    shutil.copytree(folder, tmp_path / "mine" / "small" / "1.0.0")
    assert find_folder("mine", tmp_path) == find_folder("mine/small", tmp_path) == f"{tmp_path}/mine/small/1.0.0"
    shutil.copytree(folder, tmp_path / "mine" / "large" / "1.0.0")
    with pytest.raises(ValueError, match=r"has several configs: large, small. Name one, as in 'mine/large'."):
        find_folder("mine", tmp_path)
    (tmp_path / "mine" / ".config").mkdir()
    (tmp_path / "mine" / ".config" / "metadata.json").write_text('{"defaultConfigName": "small"}')
    assert find_folder("mine", tmp_path) == f"{tmp_path}/mine/small/1.0.0"
    assert find_folder("mine/large:1.0.0", tmp_path) == f"{tmp_path}/mine/large/1.0.0"


# Splits.

SHARDS = st.dictionaries(
    st.sampled_from(["train", "val", "test-1"]), st.lists(st.integers(0, 40), min_size=1, max_size=4), min_size=1
)


@given(shards=SHARDS, cut=st.integers(0, 100), data=st.data())
def test_parts_of_a_split_are_all_of_it(shards, cut, data):
    name = data.draw(st.sampled_from(sorted(shards)))
    total = sum(shards[name])
    for low, high in ((f"[:{cut}%]", f"[{cut}%:]"), (f"[:{min(cut, total)}]", f"[{min(cut, total)}:]")):
        found = []
        for part in (low, high):
            try:
                found += parse_split(name + part, shards)
            except ValueError as error:
                assert "names no episodes" in str(error)
        assert sum(stop - start for _, start, stop in found) == total
        assert [start for _, start, _ in found[1:]] == [stop for _, _, stop in found[:-1]]
    if sum(map(sum, shards.values())):
        assert parse_split("all", shards) == parse_split("+".join(shards), shards)


def test_a_part_reads_the_files_it_needs(tmp_path):
    folder = write_rlds(
        {"train": [ones(n) for n in range(10)], "val": [ones(n) for n in (20, 21)]},
        name="mine",
        data_dir=tmp_path,
        shards=5,
    ).path
    builder = RLDSBuilder("mine", tmp_path)
    for split, wanted in {
        "train[2:5]": [2, 3, 4],
        "train[-15%:]": [8, 9],
        "val+train[:1]": [20, 21, 0],
        "train[1shard]": [2, 3],
        "all": [*range(10), 20, 21],
        "train[3:4]+train[3:4]": [3, 3],
    }.items():
        episodes = builder.episodes(split)
        assert episodes.lengths().tolist() == wanted
        assert [
            int(episodes[n]["traj_metadata"]["episode_metadata"]["id"][0]) for n in range(len(wanted)) if wanted[n]
        ] == [n for n in wanted if n]
    os.unlink(Path(folder, "mine-train.tfrecord-00004-of-00005"))
    assert len(builder.episodes("train[:80%]")) == 8
    with pytest.raises(FileNotFoundError, match=r"mine-train.tfrecord-00004-of-00005"):
        builder.episodes("train")


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        ("test", "There is no split 'test'; there are 'train', 'val', and 'all'."),
        ("train[95%:]", r"The split 'train\[95%:\]' names no episodes \('train' has 8, 'val' has 2\)"),
        ("train[5:20]", r"the split 'train' has 8 episodes; there is no part \[5:20\] of them"),
        ("train[110%:]", "percents lie between -100 and 100"),
        ("all[:50%]", r"a part of 'all' is not possible. Name a part of each split: 'train\[:50%\]\+val\[:50%\]'."),
        ("train[3]", "one number names a shard"),
        ("train[", "cannot be read. Splits are written 'train'"),
        ("train[a:b]", "cannot be read"),
        ("train[1.5:3]", "cannot be read"),
        ("train[:]", "cannot be read"),
    ],
)
def test_splits_that_are_none(split, sentence):
    with pytest.raises(ValueError, match=sentence):
        parse_split(split, {"train": [3, 5], "val": [2]})


# The index.


@pytest.fixture
def folder(tmp_path):
    """A data set of four episodes in two files, with an image for each step."""
    rng = np.random.default_rng(0)
    episodes = [
        {
            "steps": {
                "observation": {"image": rng.integers(0, 256, (length, 20, 20, 3), np.uint8)},
                "action": np.full((length, 2), length, np.float32),
                "reward": np.zeros((length, 2), np.float32),
                "text": [f"step {step}" for step in range(length)],
            },
            "episode_metadata": {"id": length},
        }
        for length in (3, 5, 2, 4)
    ]
    return Path(write_rlds({"train": episodes}, name="mine", data_dir=tmp_path / "data", shards=2).path)


def counted(monkeypatch, kind, name):
    """The calls of a method from now on."""
    calls = []
    original = getattr(kind, name)
    monkeypatch.setattr(kind, name, lambda self, *arguments: calls.append(arguments) or original(self, *arguments))
    return calls


def test_an_index_is_made_once(folder, monkeypatch):
    RLDSBuilder("mine", folder).episodes().index()
    calls = counted(monkeypatch, TFRecordDataSource, "__getitem__")
    assert RLDSBuilder("mine", folder).episodes("train[:3]").lengths().tolist() == [3, 5, 2]
    assert calls == []
    (kept, _) = (Path(os.environ["BUSHEL_CACHE_DIR"]) / "rlds").iterdir()
    for damage in (kept.read_bytes()[:-30], b"", b"no zip", kept.read_bytes()[:90] + b"\0\0" + kept.read_bytes()[92:]):
        kept.write_bytes(damage)
        with pytest.warns(UserWarning, match="is damaged.*Its episodes are read again"):
            assert RLDSBuilder("mine", folder).episodes().lengths().tolist() == [3, 5, 2, 4]
        assert len(calls) == 2  # the records of that file
        calls.clear()


def test_with_an_index_no_image_is_read(folder, monkeypatch):
    episodes = RLDSBuilder("mine", folder).episodes().index()
    whole, parts = (
        counted(monkeypatch, TFRecordDataSource, "__getitems__"),
        counted(monkeypatch, TFRecordDataSource, "read_parts"),
    )
    found = episodes[1]
    assert found["text"].tolist() == [b"step %d" % step for step in range(5)]
    read = sum(int(np.sum(sizes)) for _, _, sizes in parts)
    images = sum(map(len, found["observation"]["image"]))
    assert whole == [] and read < 400 < images
    assert len(bytes(found["observation"]["image"][2])) == len(found["observation"]["image"][2])


def test_a_changed_file_is_indexed_again(folder, tmp_path):
    builder = RLDSBuilder("mine", folder)
    assert builder.episodes().lengths().tolist() == [3, 5, 2, 4]
    other = write_rlds({"train": [ones(7), ones(8)]}, name="mine", data_dir=tmp_path / "other", shards=1).path
    image = builder.episodes()[0]["observation"]["image"][0]
    sent = pickle.dumps(image)
    encoded_images._opened.clear()
    path = folder / "mine-train.tfrecord-00000-of-00002"
    shutil.copy(Path(other, "mine-train.tfrecord-00000-of-00001"), path)
    with pytest.raises(DamagedFile, match="when the source was made, and it is"):
        bytes(pickle.loads(sent))
    for read in (lambda episodes: episodes[0], lambda episodes: episodes.index()):
        with pytest.raises(
            DamagedFile, match=r"steps/observation/image is not what features.json says\. The record does not have it\."
        ):
            read(RLDSBuilder("mine", folder).episodes())


def test_damage_is_found_by_the_index(folder):
    path = folder / "mine-train.tfrecord-00001-of-00002"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match="its content does not match its checksum"):
        RLDSBuilder("mine", folder).episodes().index()
    path.write_bytes(data[:-40])
    with pytest.raises(DamagedFile, match="ends in the middle of record 1"):
        RLDSBuilder("mine", folder).episodes()


def test_files_that_are_not_what_the_description_says(folder):
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = ["2", "3"]
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(ValueError, match=r"should have 3 episodes, as dataset_info.json says; it has 2. Was it copied"):
        RLDSBuilder("mine", folder).episodes()
    (folder / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "riegeli"}))
    with pytest.raises(ValueError, match="holds riegeli files; array_record and tfrecord can be read"):
        RLDSBuilder("mine", folder)


def changed(folder, change):
    """The features of a data set after a change of its description."""
    features = json.loads((folder / "features.json").read_text())
    change(features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"])
    (folder / "features.json").write_text(json.dumps(features))
    return RLDSBuilder("mine", folder)


def test_features_that_contradict_the_records(folder):
    builder = changed(folder, lambda steps: steps["action"]["tensor"].update(shape={"dimensions": ["3"]}))
    with pytest.raises(
        DamagedFile, match=r"episode 0: steps/action is not what features.json says\. 6 values are stored"
    ):
        builder.episodes()[0]
    builder = changed(folder, lambda steps: steps.update(action=steps["reward"], text=steps["reward"]))
    with pytest.raises(DamagedFile, match=r"steps/text is not .*\. It should be numbers, but it is bytes\."):
        builder.episodes()[0]


def test_features_that_are_not_read():
    with pytest.raises(ValueError, match=r"x is not an RLDS data set: .* \(image\). Use bushel.sources.TFDSDataSource"):
        parse_features(JsonEntry({"featuresDict": {"features": {"image": {}}}}, "features.json"), "x")
    audio = {"pythonClassName": "tensorflow_datasets.core.features.audio_feature.Audio", "audio": {}}
    steps = {"sequence": {"feature": {"featuresDict": {"features": {"sound": audio}}}}}
    with pytest.raises(ValueError, match="x: steps/sound is a feature of the kind Audio, which Bushel cannot read"):
        parse_features(JsonEntry({"featuresDict": {"features": {"steps": steps}}}, "features.json"), "x")
    with pytest.raises(ValueError, match=r"has an old form of TFDS that Bushel cannot read. A newer TFDS rewrites it"):
        old = {"type": "tensorflow_datasets.core.features.features_dict.FeaturesDict", "content": {}}
        parse_features(JsonEntry(old, "features.json"), "x")


def sequence(feature, length=-1):
    return {"sequence": {"feature": feature, "length": str(length)}}


def test_sequences_inside_of_steps():
    """TFDS needs TensorFlow to write these; the layout is that of its serializer, checked by hand once."""
    number, text = {"tensor": {"dtype": "int32", "shape": {}}}, {"text": {}}
    pair = {"tensor": {"dtype": "float32", "shape": {"dimensions": ["2"]}}}
    inner = {
        "a": sequence(number),
        "b": sequence(text),
        "c": sequence(pair, 2),
        "d": sequence(sequence(number)),
        "x": number,
    }
    steps = sequence({"featuresDict": {"features": inner}})
    features = parse_features(JsonEntry({"featuresDict": {"features": {"steps": steps}}}, "features.json"), "mine")
    stored = {
        "steps/x": [7, 8, 9],
        "steps/a/ragged_flat_values": [1, 2, 3],
        "steps/a/ragged_row_lengths_0": [2, 0, 1],
        "steps/b/ragged_flat_values": [b"one", b"two"],
        "steps/b/ragged_row_lengths_0": [0, 1, 1],
        "steps/c/ragged_flat_values": np.arange(12, dtype=np.float32),
        "steps/c/ragged_row_lengths_0": [2, 2, 2],
        "steps/d/ragged_flat_values": [5, 6, 7],
        "steps/d/ragged_row_lengths_0": [2, 0, 1],
        "steps/d/ragged_row_lengths_1": [1, 2, 0],
    }

    def read(**changes):
        record = encode_example(stored | {name.replace("__", "/"): value for name, value in changes.items()})
        values = Values(record, locate_example(record), "here")
        length = count_stored_steps(values, features)
        return {leaf.path: values.read(leaf, length, unpack=False) for leaf in features.steps}

    found = read()
    assert [part.tolist() for part in found["a"]] == [[1, 2], [], [3]]
    assert all(part.dtype == np.int32 for part in found["a"])
    assert [part.tolist() for part in found["b"]] == [[], [b"one"], [b"two"]]
    assert same(found["c"], np.arange(12, dtype=np.float32).reshape(3, 2, 2))
    assert [[row.tolist() for row in part] for part in found["d"]] == [[[5], [6, 7]], [], [[]]]
    with pytest.raises(DamagedFile, match=r"here: steps/a .*3 values are stored, but their lengths add up to 4\."):
        read(steps__a__ragged_row_lengths_0=[2, 1, 1])
    with pytest.raises(DamagedFile, match=r"here: steps/a .*2 values are stored for 3 steps|here: steps/b"):
        read(steps__a__ragged_row_lengths_0=[2, 1])
    with pytest.raises(
        DamagedFile, match=r"here: steps/c .*5 values are stored, which do not make sequences of \(2,\)"
    ):
        read(steps__c__ragged_flat_values=np.arange(10, dtype=np.float32))


# Handles.


def test_an_encoded_image_is_read_when_its_bytes_are_asked_for(folder, monkeypatch):
    episodes = RLDSBuilder("mine", folder).episodes()
    images = episodes[1]["observation"]["image"]
    assert all(isinstance(image, Encoded) for image in images)
    calls = counted(monkeypatch, TFRecordDataSource, "read_parts")
    assert [len(image) for image in images] and images[0] == images[0] and images[0] != b"" and calls == []
    data = read_all([images[2], b"kept", images[0], images[2]])
    assert len(calls) == 1 and len(calls[0][0]) == 2  # one read, each image once
    assert data == [bytes(images[2]), b"kept", bytes(images[0]), bytes(images[2])]
    assert images[2] == data[0] and data[0] == images[2] and images[0] != data[0]
    assert images[0] == episodes[1]["observation"]["image"][0]
    assert repr(images[0]).startswith("Encoded(") and images[0].address[2] == len(images[0])
    with pytest.raises(TypeError, match="unhashable"):
        hash(images[0])
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(bytes, list(images) * 20)) == [bytes(image) for image in images] * 20


def test_handles_pickle_small(tmp_path):
    write_rlds(
        {"train": [{"steps": {"image": np.zeros((9, 2, 2, 3), np.uint8)}}] * 60},
        name="mine",
        data_dir=tmp_path,
        shards=60,
    )
    images = RLDSBuilder("mine", tmp_path).episodes()[41]["image"]
    sent = pickle.dumps(images)
    assert len(sent) < 2000  # of one file, not of all sixty
    found = pickle.loads(sent)
    assert list(found) == [bytes(image) for image in images]
    assert pickle.loads(sent)[0].parts is found[0].parts  # its file stays open


@pytest.mark.parametrize("kind", ["tfrecord", "array_record"])
def test_parts_that_are_not_there(tmp_path, kind):
    write_rlds({"train": [ones(3)]}, name="mine", data_dir=tmp_path, file_format=kind)
    parts = RLDSBuilder("mine", tmp_path).episodes().parts
    for start, size in ((0, 1 << 20), (-1, 2), (3, -1)):
        with pytest.raises(ValueError, match="bytes"):
            parts.read([0], [start], [size])
    assert len(parts.read([0, 0], [0, 3], [3, 0])[0]) == 3 and "RecordSpans(" in repr(parts)


def test_records_of_chunked_files_are_kept(tmp_path, monkeypatch):
    episodes = [{"steps": {"image": np.full((4, 5, 5, 3), n, np.uint8)}} for n in range(6)]
    write_rlds({"train": episodes}, name="mine", data_dir=tmp_path, file_format="array_record")
    found = RLDSBuilder("mine", tmp_path).episodes()
    places = found.frames("image")
    calls = counted(monkeypatch, type(found.parts.source), "__getitems__")
    first = found.parts.read(*places[:4].T)
    assert found.parts.read(*places[:4].T) == first and len(calls) == 1
    monkeypatch.setattr(encoded_images, "_KEPT_BYTES", 1)
    assert found.parts.read(*places[::-1].T)[::-1][:4] == first
    assert len(found.parts._kept) == 1


# Pipelines, workers, stores.


def test_episodes_in_workers(folder):
    episodes = RLDSBuilder("mine", folder).episodes().index()
    ds = MapDataset.source(episodes).shuffle(seed=1).map(lambda trajectory: trajectory["observation"]["image"])
    here = [read_all(images) for images in ds]
    with iter(ds.to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_workers=2))) as there:
        assert [read_all(images) for images in there] == here
    assert len(pickle.dumps(episodes)) < 10_000
    assert same(plain(pickle.loads(pickle.dumps(episodes))[2]), plain(episodes[2]))
    assert episodes.fingerprint() == RLDSBuilder("mine", folder).episodes("train").fingerprint()
    assert episodes.fingerprint() != RLDSBuilder("mine", folder).episodes("train[1:]").fingerprint()
    json.dumps(episodes.fingerprint())


def test_episodes_are_found_by_position_and_wrong_ones_are_named(folder):
    episodes = RLDSBuilder("mine", folder).episodes("train[1:]")
    assert len(episodes[-1]["action"]) == 4 and episodes[-1]["_traj_index"].tolist() == [2] * 4
    with pytest.raises(IndexError, match="index 3 is out of range for 3 episodes"):
        episodes[3]
    with pytest.raises(KeyError, match="has no images 'image'; it has observation/image"):
        episodes.frames("image")
    with pytest.raises(ValueError, match=r'images must be "lazy" or "bytes", got .eager'):
        RLDSBuilder("mine", folder).episodes(images="eager")
    assert repr(episodes) == "RLDSEpisodes(mine/train[1:]: 3 episodes)"


def test_a_data_set_in_a_store(folder, tmp_path):
    with s3(tmp_path) as put:
        for path in folder.iterdir():
            put(f"sets/mine/1.0.0/{path.name}", path.read_bytes())
        builder, here = RLDSBuilder("mine", f"s3://{BUCKET}/sets"), RLDSBuilder("mine", folder).episodes()
        assert builder.folder == f"s3://{BUCKET}/sets/mine/1.0.0"
        there = builder.episodes()
        assert all(same(plain(there[place]), plain(here[place])) for place in range(4))
        there.index()
        assert same([plain(row) for row in there.__getitems__([3, 0])], [plain(here[3]), plain(here[0])])
        assert there.parts.read(*there.frames("observation/image").T) == here.parts.read(
            *here.frames("observation/image").T
        )
        with pytest.raises(FileNotFoundError, match="no prepared data set 'yours'"):
            RLDSBuilder("yours", f"s3://{BUCKET}/sets")


def test_progress_is_shown_on_a_terminal_alone(folder, monkeypatch, capsys):
    source, features = RLDSBuilder("mine", folder).episodes().parts.source, RLDSBuilder("mine", folder).features
    index_episodes(source, features, cache_dir=str(folder / "a"))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("bushel._src.base.shown_text.BAR_AFTER_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    index_episodes(source, features, cache_dir=str(folder / "b"), progress=False)
    assert capsys.readouterr().err == ""
    index_episodes(source, features, cache_dir=str(folder / "c"))
    assert "4/4" in capsys.readouterr().err
    assert isinstance(RecordSpans(source).read([0], [0], [1]), list)


def test_import_is_light():
    code = (
        "import sys, bushel._src.trajectory.rlds.reader, bushel._src.trajectory.rlds.writer;"
        "import bushel.trajectory.text_processing;"
        "print({'jax', 'PIL', 'simplejpeg', 'tokenizers', 'yaml', 'crc32c'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"


# Beside TFDS itself, where it is installed.


@settings(max_examples=500, deadline=None)
@given(shards=SHARDS, data=st.data())
def test_splits_as_tfds_reads_them(shards, data):
    pytest.importorskip("tensorflow_datasets")
    from tensorflow_datasets.core import splits as theirs  # pyright: ignore[reportMissingImports]

    numbers = st.integers(-120, 120) | st.integers(-5, 5) | st.floats(-110, 110).map(lambda value: round(value, 1))
    bounds = st.builds("{}{}".format, numbers, st.sampled_from(["", "%", "shard"])) | st.just("")
    terms = (
        st.sampled_from(["all", "train", "val", "train[2shard]"])
        | st.builds("train[{}:{}]".format, bounds, bounds)
        | st.builds("val[{}:{}]".format, bounds, bounds)
    )
    split = data.draw(st.lists(terms, min_size=1, max_size=2).map(" + ".join))
    infos = {name: SimpleNamespace(shard_lengths=counts, num_examples=sum(counts)) for name, counts in shards.items()}
    try:
        found = theirs.AbstractSplit.from_spec(split).to_absolute(infos)
        wanted = [
            (part.splitname, part.from_ or 0, infos[part.splitname].num_examples if part.to is None else part.to)
            for part in found
        ]
        wanted = [(name, low, high) for name, low, high in wanted if low < high]
    except Exception:
        wanted = []
    if wanted:
        assert parse_split(split, shards) == wanted
    else:
        with pytest.raises(ValueError):
            parse_split(split, shards)


def png(pixels):
    """TFDS encodes no images without TensorFlow."""
    output = io.BytesIO()
    Image.fromarray(pixels).save(output, "png")
    return output.getvalue()


def test_what_tfds_writes(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    kinds = tfds.features

    def example(number):
        rng = np.random.default_rng(number)
        return {
            "steps": [
                {
                    "observation": {
                        "image": io.BytesIO(png(rng.integers(0, 256, (4, 5, 3), np.uint8))),
                        "slash/ed": rng.normal(size=(2,)).astype(np.float32),
                    },
                    "bool": bool(step % 2),
                    "u64": np.uint64(2**63 + step),
                    "f64": np.float64(step / 4),
                    "label": step % 3,
                    "box": kinds.BBox(0.0, 0.25, 0.5, 1.0),
                    "strings": np.array([f"{step}", "é"], object),
                    "zlib": rng.integers(0, 9, (2, 2)).astype(np.int16),
                    "bytes": rng.integers(0, 9, (3,)).astype(np.float64),
                    "dynamic": np.full((step % 2 + 1, 2), step, np.int32),
                }
                for step in range(number % 4)
            ],
            "episode_metadata": {
                "path": f"/{number}",
                "vector": np.arange(number % 3, dtype=np.int64),
                "maybe": number if number % 2 else None,
            },
        }

    class Mine(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.2.3")

        def _info(self):
            steps = {
                "observation": {
                    "image": kinds.Image(shape=(4, 5, 3)),
                    "slash/ed": kinds.Tensor(shape=(2,), dtype=np.float32),
                },
                "bool": np.bool_,
                "u64": np.uint64,
                "f64": np.float64,
                "label": kinds.ClassLabel(num_classes=3),
                "box": kinds.BBoxFeature(),
                "strings": kinds.Tensor(shape=(2,), dtype=np.str_),
                "zlib": kinds.Tensor(shape=(2, 2), dtype=np.int16, encoding="zlib"),
                "bytes": kinds.Tensor(shape=(None,), dtype=np.float64, encoding="bytes"),
                "dynamic": kinds.Tensor(shape=(None, None), dtype=np.int32, encoding="zlib"),
            }
            metadata = {
                "path": kinds.Text(),
                "vector": kinds.Sequence(np.int64),
                "maybe": kinds.Tensor(shape=(), dtype=np.int32, optional=True),
            }
            features = kinds.FeaturesDict({"steps": kinds.Dataset(steps), "episode_metadata": metadata})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, manager):
            return {"train": self._generate_examples(7)}

        def _generate_examples(self, count):
            yield from ((number, example(number)) for number in range(count))

    Mine(data_dir=str(tmp_path), file_format="array_record").download_and_prepare()
    builder = RLDSBuilder("mine", tmp_path)
    assert builder.version == "1.2.3" and builder.splits == {"train": 7}
    episodes, packed = builder.episodes(unpack=True, images="bytes"), builder.episodes().index()
    seen = set()
    for place in range(7):
        found, left = flatten_tree(episodes[place]), flatten_tree(packed[place])
        steps = left["_len"].shape[0]
        if not steps:
            assert {len(leaf) for leaf in found.values()} == {0}
            continue
        number = int(found["traj_metadata/episode_metadata/path"][0][1:])
        seen.add(number)
        metadata = example(number)["episode_metadata"]
        assert found["traj_metadata/episode_metadata/vector"].tolist() == [metadata["vector"].tolist()] * steps
        maybe = np.iinfo(np.int32).min if metadata["maybe"] is None else metadata["maybe"]
        assert found["traj_metadata/episode_metadata/maybe"].tolist() == [maybe] * steps
        for step, wanted in enumerate(example(number)["steps"]):
            row = {path: leaf[step] for path, leaf in found.items()}
            assert row["observation/image"] == wanted["observation"]["image"].getvalue()
            assert left["observation/image"][step] == row["observation/image"]
            assert same(row["observation/slash/ed"], wanted["observation"]["slash/ed"])
            for name in ("u64", "f64", "zlib", "bytes", "dynamic"):
                assert same(row[name], wanted[name]), name
            assert row["bool"] == wanted["bool"] and row["label"] == wanted["label"]
            assert row["box"].tolist() == [0.0, 0.25, 0.5, 1.0]
            assert row["strings"].tolist() == [b"%d" % step, "é".encode()]
            assert zlib.decompress(left["zlib"][step]) == wanted["zlib"].tobytes()  # as dlimp leaves it
    assert seen == {1, 2, 3, 5, 6}


@pytest.mark.parametrize("kind", ["tfrecord", "array_record"])
def test_what_is_written_is_read_by_tfds(tmp_path, kind):
    tfds = pytest.importorskip("tensorflow_datasets")
    rng = np.random.default_rng(0)
    episodes = [
        {
            "steps": {
                "image": rng.integers(0, 256, (length, 4, 5, 3), np.uint8),
                "action": rng.normal(size=(length, 3)).astype(np.float32),
                "inner": {"text": as_texts([f"é{step}" for step in range(length)]), "flag": np.arange(length) == 0},
            },
            "episode_metadata": {"id": length, "path": f"/{length}"},
        }
        for length in (2, 0, 3)
    ]
    folder = write_rlds({"train": episodes}, name="mine", data_dir=tmp_path, file_format=kind, shards=2).path
    theirs = tfds.builder_from_directory(folder)
    assert theirs.info.splits["train"].num_examples == 3
    if kind == "array_record":
        rows = theirs.as_data_source("train")
    else:
        rows = [theirs.info.features.deserialize_example_np(row) for row in TFRecordDataSource(f"{folder}/*tfrecord*")]
    for row, episode in zip(rows, episodes):
        assert row["episode_metadata"]["id"] == episode["episode_metadata"]["id"]
        steps = [row["steps"][number] for number in range(len(row["steps"]))]
        assert len(steps) == len(episode["steps"]["action"])
        for number, step in enumerate(steps):
            assert same(step["image"], episode["steps"]["image"][number])
            assert same(step["action"], episode["steps"]["action"][number])
            assert step["inner"]["text"].decode() == episode["steps"]["inner"]["text"][number]
            assert bool(step["inner"]["flag"]) == (number == 0)
