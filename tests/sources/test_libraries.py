"""Data sets of other libraries: TFDS folders, Hugging Face datasets, PyTorch datasets, webdataset, Lance.

TFDS and PyTorch are large, and `make test` does not install them: `make test-libraries` does, and runs this file.
A prepared TFDS folder is checked by `test_tfds.py` without them.
"""

import io
import itertools
import pickle
import shutil

import datasets
import lance
import numpy as np
import pyarrow as pa
import pytest
import webdataset
from helpers.record_formats import read_by_eight_threads

import bushel
from bushel import DamagedFile, MapDataset
from bushel._src.base import blocks
from bushel.experimental import WebDatasetIterDataset
from bushel.sources import LanceDataSource
from bushel.testing import check_resumes_anywhere, same

WORKERS = bushel.MultiprocessingOptions(num_workers=2)


def in_workers(ds):
    with iter(ds.to_iter_dataset().mp_prefetch(WORKERS)) as workers:
        return list(workers)


def test_hugging_face_datasets(tmp_path):
    rows = {"x": list(range(50)), "text": [f"row {n}" for n in range(50)]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "saved"))
    stored = datasets.load_from_disk(str(tmp_path / "saved"))
    ds = MapDataset.source(stored).shuffle(seed=1)
    order = [int(n) for n in MapDataset.range(50).shuffle(seed=1)]
    assert list(ds) == [{"x": n, "text": f"row {n}"} for n in order]
    assert in_workers(ds) == list(ds)
    assert list(ds[3:9]) == list(ds)[3:9]
    check_resumes_anywhere(ds.map(lambda row: row["x"]).batch(8).to_iter_dataset())
    assert len(pickle.dumps(stored)) < 5_000


@pytest.mark.parametrize("form", [None, "numpy", "jax", "pandas", "arrow"])
def test_hugging_face_formats_give_each_record_as_it_is_alone(form):
    kinds = datasets.Features(
        {"n": datasets.Value("int64"), "i": datasets.Value("int32"), "s": datasets.Value("string")}
    )
    rows = {"n": [2**24 + 1] * 30 + [None] + [2**24 + 1] * 29, "i": list(range(60)), "s": [f"{n}" for n in range(60)]}
    stored = datasets.Dataset.from_dict(rows, features=kinds).with_format(form)
    ds = MapDataset.source(stored)
    alone = [described(stored[n]) for n in range(60)]
    assert [described(ds[n]) for n in range(60)] == alone
    assert [described(record) for record in ds] == alone
    for count in (1, 2) if form != "jax" else ():  # an array on a device does not go to other processes
        options = bushel.MultiprocessingOptions(num_workers=count)
        with iter(ds.to_iter_dataset().mp_prefetch(options)) as workers:
            assert [described(record) for record in workers] == alone


def described(record):
    """A record as text, with the types in it."""
    if not isinstance(record, dict):
        return type(record).__name__, str(record)
    return {
        name: (type(value).__name__, str(getattr(value, "dtype", "")), str(value)) for name, value in record.items()
    }


def test_hugging_face_streams():

    def rows():
        for number in range(40):
            yield {"x": number}

    stream = datasets.IterableDataset.from_generator(rows)
    ds = bushel.IterDataset.source(stream)
    assert [row["x"] for row in ds] == list(range(40))
    check_resumes_anywhere(ds.map(lambda row: row["x"]).batch(8))


def test_hugging_face_streams_that_would_lose_records_are_refused():
    def rows():
        for number in range(300):
            yield {"x": number}

    stream = datasets.IterableDataset.from_generator(rows)
    shuffled = stream.shuffle(seed=1, buffer_size=50)
    pairs = datasets.interleave_datasets([stream, shuffled])
    for made in (shuffled, shuffled.map(lambda row: row).filter(lambda row: True), pairs):
        with pytest.raises(ValueError, match=r"shuffles in a buffer.*window_shuffle"):
            bushel.IterDataset.source(made)
        with pytest.raises(ValueError, match=r"shuffles in a buffer.*window_shuffle"):
            next(iter(bushel.IterDataset.source(lambda made=made: made)))
    shards_only = stream.shuffle(seed=1, buffer_size=1)
    for ds in (bushel.IterDataset.source(shards_only), bushel.IterDataset.source(stream).window_shuffle(50, seed=1)):
        it = iter(ds)
        before = [next(it)["x"] for _ in range(100)]
        later = iter(ds)
        later.set_state(it.get_state())
        assert sorted(before + [row["x"] for row in later]) == list(range(300))


def test_datasets_of_torch_are_sources():
    torch = pytest.importorskip("torch")

    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 30

        def __getitem__(self, index):
            return {"x": torch.arange(3) * index, "y": index}

    ds = MapDataset.source(Squares()).shuffle(seed=2)
    order = [int(n) for n in MapDataset.range(30).shuffle(seed=2)]
    batches = list(ds.batch(10))
    assert np.array_equal(np.concatenate([b["x"] for b in batches]), np.outer(order, np.arange(3)))
    assert [b["y"].tolist() for b in batches] == [order[:10], order[10:20], order[20:]]
    assert same(in_workers(ds.batch(10)), batches)
    part = torch.utils.data.Subset(Squares(), list(range(29, -1, -1)))  # its __getitems__ looks indices up in a list
    assert MapDataset.source(part).batch(30)[0]["y"].tolist() == list(range(29, -1, -1))
    tensors = torch.utils.data.TensorDataset(torch.arange(6).reshape(3, 2))
    assert [row[0].tolist() for row in MapDataset.source(tensors)] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset does not close what it has read
def test_webdataset_reads_the_same(tmp_path):
    path = str(tmp_path / "shard.tar")
    with webdataset.TarWriter(path) as sink:
        for number in range(30):
            sink.write(
                {"__key__": f"sample/{number:03d}", "txt": f"row {number}", "cls": number, "npy": np.arange(number)}
            )
    theirs = list(webdataset.WebDataset(path, shardshuffle=False))
    ours = list(WebDatasetIterDataset(path))
    assert [{key: row[key] for key in row if key not in ("__url__", "__local_path__")} for row in theirs] == ours


def test_lance_data_sets_are_read(tmp_path):
    table = pa.table({"x": list(range(60)), "text": [f"row {n}" for n in range(60)]})
    lance.write_dataset(table, str(tmp_path / "data.lance"), max_rows_per_file=25)
    source = LanceDataSource(str(tmp_path / "data.lance"))
    assert len(source) == 60
    assert source.__getitems__([5, 50, 5]) == [{"x": n, "text": f"row {n}"} for n in (5, 50, 5)]
    ds = MapDataset.source(source).shuffle(seed=1)
    assert [row["x"] for row in ds] == [int(n) for n in MapDataset.range(60).shuffle(seed=1)]
    assert in_workers(ds) == list(ds)
    assert len(pickle.dumps(source)) < 1_000
    assert LanceDataSource(str(tmp_path / "data.lance"), columns=["x"])[7] == {"x": 7}


def test_what_lance_gives_does_not_depend_on_what_is_read_beside_it(tmp_path):
    columns = {"id": [1, None, 3], "flag": [True, None, False], "score": [0.5, None, 1.5]}
    lance.write_dataset(pa.table(columns), str(tmp_path / "data.lance"))
    source = LanceDataSource(str(tmp_path / "data.lance"))
    alone = [source[place] for place in range(3)]
    assert same(alone[0], {"id": np.int64(1), "flag": np.True_, "score": np.float64(0.5)})
    assert same(alone[1], {"id": None, "flag": None, "score": np.float64("nan")})
    for places in ([0, 1, 2], [0, 2], [2, 1]):
        assert same(blocks.rows_of(source.__getitems__(places)), [alone[place] for place in places])


def test_eight_threads_read_the_right_rows_of_other_libraries(tmp_path):
    rows = {"x": list(range(200)), "text": [f"row {n}" for n in range(200)]}
    expected = [{"x": n, "text": f"row {n}"} for n in range(200)]
    lance.write_dataset(pa.table(rows), str(tmp_path / "data.lance"), max_rows_per_file=25)
    lances = [{"x": np.int64(n), "text": f"row {n}"} for n in range(200)]
    read_by_eight_threads(LanceDataSource(str(tmp_path / "data.lance")), lances)
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "saved"))
    read_by_eight_threads(datasets.load_from_disk(str(tmp_path / "saved")), expected)


def test_what_lance_does_not_have(tmp_path):
    path = str(tmp_path / "data.lance")
    lance.write_dataset(pa.table({"x": range(3), "s": [{"a": n, "b": {"c": n}} for n in range(3)]}), path)
    for name in ("y", "s.y", "s.b.y"):
        message = rf"data\.lance has no column '{name}'; its columns are 'x', 's', 's\.a', 's\.b', 's\.b\.c'\."
        with pytest.raises(ValueError, match=message):
            LanceDataSource(path, columns=[name])
    assert LanceDataSource(path, columns=["s.b.c", "x"])[2] == {"s": {"b": {"c": 2}}, "x": 2}
    assert LanceDataSource(path, columns=["_rowid"])[2] == {"_rowid": 2}
    with pytest.raises(FileNotFoundError, match=r"nothing\.lance is not a Lance data set: "):
        LanceDataSource(tmp_path / "nothing.lance")
    with pytest.raises(FileNotFoundError, match=r"data\.lance is not a Lance data set with a version 9: "):
        LanceDataSource(path, version=9)


def test_a_checkpoint_knows_a_lance_data_set(tmp_path):
    def state_of(path, state=None):
        it = iter(MapDataset.source(LanceDataSource(path)).to_iter_dataset())
        if state is not None:
            it.set_state(state)
        return it.get_state()

    path = str(tmp_path / "data.lance")
    lance.write_dataset(pa.table({"x": range(3)}), path)
    state = state_of(path)
    assert state_of(path, state) == state
    shutil.rmtree(path)
    lance.write_dataset(pa.table({"x": [5, 6, 7]}), path)  # again a version 1 with three rows
    with pytest.raises(bushel.StateMismatch):
        state_of(path, state)


def test_a_panic_of_lance_is_an_error_like_others(tmp_path):
    path = str(tmp_path / "data.lance")
    lance.write_dataset(pa.table({"x": range(3)}), path)
    source = LanceDataSource(path)
    source._stores[0]._columns = ["gone"]  # the package panics over it
    with pytest.raises(DamagedFile, match=r"data\.lance: rows \[1\] cannot be read"):
        source[1]


# TFDS: what it has written, read by it and by us.


def png(number):
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), number, np.uint8)).save(out, "png")
    return out.getvalue()


def example(i):
    return {
        "image": io.BytesIO(png(i)),
        "label": i % 10,
        "text": f"t{i}",
        "vec": np.arange(3, dtype=np.float32) * i,
        "mat": np.full((2, i % 3), i, np.int32),
        "b": bool(i % 2),
        "f64": i / 4,
        "u8": np.array([i, i], np.uint8),
        "u64": 2**63 + i,
        "z": np.full((2, 2), i, np.float32),
        "nested": {"x": i, "s": f"s{i}"},
        "seq": list(range(i % 4)),
        "seqs": [{"a": k, "t": f"{k}"} for k in range(i % 3)],
        "texts": ["x"] * (i % 3),
        "pairs": [np.array([f"{k}", "y"], object) for k in range(i % 3)],
        "both": {"de": f"ja {i}", "en": "yes"},
        "some": {"de": ["ja", "jawohl"], "en": f"yes {i}"},
        "imgs": [io.BytesIO(png(k)) for k in range(i % 3)],
        "steps": [
            {"obs": np.array([k, k + 1], np.float32), "img": io.BytesIO(png(k)), "is_last": k == i % 4 - 1}
            for k in range(i % 4)
        ],
    }


def plain(value):
    """Values of either library as nested lists of Python values."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value.item() if isinstance(value, np.generic) else value


def columns(steps):
    """TFDS's steps, one dict each, as a dict of columns."""
    rows = [steps[number] for number in range(len(steps))]
    names = rows[0] if rows else ("img", "is_last", "obs")
    return {name: [plain(row[name]) for row in rows] for name in names}


def test_folders_that_tfds_has_written_are_read(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    from bushel.sources import TFDSDataSource

    features = tfds.features

    class Photos(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self,
                features=features.FeaturesDict(
                    {
                        "image": features.Image(shape=(None, None, 3)),
                        "label": features.ClassLabel(num_classes=10),
                        "text": features.Text(),
                        "vec": features.Tensor(shape=(3,), dtype=np.float32),
                        "mat": features.Tensor(shape=(2, None), dtype=np.int32),
                        "b": features.Scalar(np.bool_),
                        "f64": features.Scalar(np.float64),
                        "u8": features.Tensor(shape=(2,), dtype=np.uint8),
                        "u64": features.Scalar(np.uint64),
                        "z": features.Tensor(shape=(2, 2), dtype=np.float32, encoding="zlib"),
                        "nested": {"x": features.Scalar(np.int64), "s": features.Tensor(shape=(), dtype=np.str_)},
                        "seq": features.Sequence(features.Scalar(np.int64)),
                        "seqs": features.Sequence({"a": features.Scalar(np.int64), "t": features.Text()}),
                        "texts": features.Sequence(features.Text()),
                        "pairs": features.Sequence(features.Tensor(shape=(2,), dtype=np.str_)),
                        "both": features.Translation(["de", "en"]),
                        "some": features.TranslationVariableLanguages(["de", "en"]),
                        "imgs": features.Sequence(features.Image(shape=(4, 5, 3))),
                        "steps": features.Dataset(
                            {
                                "obs": features.Tensor(shape=(2,), dtype=np.float32),
                                "img": features.Image(shape=(4, 5, 3)),
                                "is_last": features.Scalar(np.bool_),
                            }
                        ),
                    }
                ),
            )

        def _split_generators(self, manager):
            return {"train": self._generate_examples(23), "test": self._generate_examples(4)}

        def _generate_examples(self, count):
            yield from ((number, example(number)) for number in range(count))

    builder = Photos(data_dir=str(tmp_path), file_format="array_record")
    builder.download_and_prepare()
    for split, count in (("train", 23), ("test", 4)):
        theirs = builder.as_data_source(split=split)
        ours = TFDSDataSource(builder.data_path, split=split)
        assert len(ours) == len(theirs) == count
        for index in range(count):
            their, our = dict(theirs[index]), dict(ours[index])
            assert plain(our.pop("steps")) == columns(their.pop("steps"))
            assert plain(our) == plain(their), index
        as_it_is = MapDataset.source(theirs).map(lambda row: int(row["label"]))
        labels = [int(theirs[index]["label"]) for index in range(count)]
        for size in (1, 2, count):  # TFDS asks `if not indices`
            assert np.concatenate(list(as_it_is.batch(size))).tolist() == labels
    labels = MapDataset.source(ours).map(lambda row: int(row["label"]))
    assert in_workers(labels) == list(labels)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it
def test_iterables_with_state_from_torchdata():
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    loader = stateful.StatefulDataLoader(list(range(20)), batch_size=None)
    ds = bushel.IterDataset.source(loader)
    assert list(itertools.islice(ds, 20)) == list(range(20))
    check_resumes_anywhere(ds)
