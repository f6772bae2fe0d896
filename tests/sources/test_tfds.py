"""A folder that TFDS 4.9.10 has prepared (tests/data/tfds_mine.zip), read without TFDS; also as TFRecord files.

`test_libraries.py` writes one anew and compares with TFDS itself.
"""

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers.record_formats import read_by_eight_threads, written

from bushel import MapDataset
from bushel._src.sources.tfds import JsonEntry, parse_feature
from bushel.sources import ArrayRecordDataSource, TFDSDataSource, decode_example
from bushel.testing import check_resumes_anywhere, same

DATA = Path(__file__).parent.parent / "data" / "tfds_mine.zip"
PICTURE = np.ones((4, 5, 3), np.uint8)


@pytest.fixture(params=["array_record", "tfrecord"])
def folder(request, tmp_path):
    """The prepared folder, with its files in one format or the other."""
    with zipfile.ZipFile(DATA) as archive:
        archive.extractall(tmp_path)
    if request.param == "tfrecord":
        info = json.loads((tmp_path / "dataset_info.json").read_text())
        (tmp_path / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
        for split in ("train", "test"):
            old = tmp_path / f"mine-{split}.array_record-00000-of-00001"
            made = written(tmp_path, "tfrecord", list(ArrayRecordDataSource(old)), "made")
            made.rename(tmp_path / f"mine-{split}.tfrecord-00000-of-00001")
            old.unlink()
    return tmp_path


def expected(i):
    """What the writer of the folder put in, in the form we give."""
    steps = i % 4
    return {
        "image": PICTURE * i,
        "label": np.int64(i % 10),
        "text": f"t{i}".encode(),
        "vec": np.arange(3, dtype=np.float32) * i,
        "mat": np.full((2, i % 3), i, np.int32),
        "b": np.bool_(i % 2),
        "f64": np.float64(i / 4),
        "u8": np.array([i, i], np.uint8),
        "u64": np.uint64(2**63 + i),
        "z": np.full((2, 2), i, np.float32),
        "nested": {"x": np.int64(i), "s": f"s{i}".encode()},
        "seq": np.arange(i % 4),
        "seqs": {"a": np.arange(i % 3), "t": [b"%d" % k for k in range(i % 3)]},
        "texts": [b"x"] * (i % 3),
        "imgs": np.stack([PICTURE * k for k in range(i % 3)]) if i % 3 else [],
        "steps": {
            "obs": np.array([[k, k + 1] for k in range(steps)], np.float32).reshape(steps, 2),
            "img": np.stack([PICTURE * k for k in range(steps)]) if steps else [],
            "is_last": np.array([k == steps - 1 for k in range(steps)], bool),
        },
    }


def test_examples_are_decoded_as_they_were_written(folder):
    for split, count in (("train", 23), ("test", 4)):
        source = TFDSDataSource(folder, split=split)
        assert len(source) == count
        found = {int(row["nested"]["x"]): row for row in MapDataset.source(source)}  # TFDS shuffles what it writes
        assert sorted(found) == list(range(count))
        for number, row in found.items():
            wanted = expected(number)
            assert row.keys() == wanted.keys()
            for name in wanted:
                assert same(row[name], wanted[name]), (number, name)


def test_pipelines_and_pickles(folder):
    source = TFDSDataSource(folder, split="train")
    ds = MapDataset.source(source).shuffle(seed=1).map(lambda row: {"image": row["image"], "label": row["label"]})
    assert ds.batch(8)[0]["image"].shape == (8, 4, 5, 3)
    check_resumes_anywhere(ds.batch(8).to_iter_dataset())
    assert len(pickle.dumps(source)) < 5_000
    assert same(pickle.loads(pickle.dumps(source))[3], source[3])


def test_eight_threads_read_the_right_examples(folder):
    source = TFDSDataSource(folder, split="train")
    read_by_eight_threads(source, [source[index] for index in range(len(source))])


def test_stored_features_as_they_are(folder):
    source = TFDSDataSource(folder, split="test", decode=False)
    assert source[0]["text"][0].startswith(b"t")
    assert set(source[0]) >= {"image", "nested/x", "steps/obs"}


def test_what_a_tfds_folder_lacks_is_named(folder):
    with pytest.raises(ValueError, match=r"has no split 'validation'; it has 'train', 'test'. Slice a dataset"):
        TFDSDataSource(folder, split="validation")
    with pytest.raises(FileNotFoundError):
        TFDSDataSource(folder / "nothing", split="train")
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "riegeli"}))
    with pytest.raises(ValueError, match="has riegeli files, but Bushel reads only array_record and tfrecord files"):
        TFDSDataSource(folder, split="train")
    info["splits"][0]["shardLengths"] = ["24"]
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(ValueError, match=r"the split 'train' should have 24 examples, but it has 23"):
        TFDSDataSource(folder, split="train")


def test_sequences_in_sequences():
    spec = {"sequence": {"feature": {"sequence": {"feature": {"tensor": {"dtype": "int32", "shape": {}}}}}}}
    stored = {"x/ragged_flat_values": np.arange(5), "x/ragged_row_lengths_0": np.array([3, 0, 2])}
    rows = parse_feature(JsonEntry(spec, "features.json"), "x").decode("x", stored, 0)
    assert [row.tolist() for row in rows] == [[0, 1, 2], [], [3, 4]]
    assert all(row.dtype == np.int32 for row in rows)


def a_sequence_of_texts(*shape):
    tensor = {"dtype": "string", "encoding": "none", "shape": {"dimensions": [str(size) for size in shape]}}
    return parse_feature(JsonEntry({"sequence": {"feature": {"tensor": tensor}}}, "features.json"), "x")


def test_sequences_of_texts_with_a_shape():
    for count in range(3):
        texts = [b"%d" % number for number in range(4 * count)]
        rows = a_sequence_of_texts(2, 2).decode("x", {"x": texts}, 0)
        assert rows.dtype == object and rows.shape == (count, 2, 2) and rows.ravel().tolist() == texts
    with pytest.raises(ValueError, match=r"a sequence of values of the unknown shape \(-1,\)"):
        a_sequence_of_texts(-1).decode("x", {"x": [b"a", b"b"]}, 0)


def test_translations_are_decoded_by_language():
    stored = {"x/de": [b"ja"], "x/en": [b"yes"], "y/language": [b"de", b"en"], "y/translation": [b"ja", b"yes"]}
    fixed, variable = {"languages": ["de", "en"]}, {"languages": ["de", "en"], "variableLanguagesPerExample": True}
    assert parse_feature(JsonEntry({"translation": fixed}, "features.json"), "x").decode("x", stored, 0) == {
        "de": b"ja",
        "en": b"yes",
    }
    both = {"language": [b"de", b"en"], "translation": [b"ja", b"yes"]}
    assert parse_feature(JsonEntry({"translation": variable}, "features.json"), "y").decode("y", stored, 0) == both


def test_a_kind_of_feature_that_is_not_known():
    spec = {"pythonClassName": "tensorflow_datasets.core.features.audio_feature.Audio", "audio": {}}
    with pytest.raises(ValueError, match=r"x: Bushel does not decode features of the kind Audio. Pass decode=False"):
        parse_feature(JsonEntry(spec, "features.json"), "x")
    assert decode_example(b"") == {}
