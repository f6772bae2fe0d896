"""Time series from files in the true format, and their windows: equal to cyreal's where those are right."""

from __future__ import annotations

import inspect

import cyreal.datasets
import numpy as np
import pytest
from cyreal.datasets import time_utils as theirs
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bushel._src.base.errors import DamagedFile
from bushel._src.jit.datasets import downloads
from bushel.jit import ArraySource, BatchTransform, DataLoader
from bushel.jit.cereal import dataset_to_jax
from bushel.jit.datasets import DailyMinTemperaturesDataset, SunspotsDataset, time_utils

KINDS = {
    SunspotsDataset: (cyreal.datasets.SunspotsDataset, '"Month","Sunspots"', "1749-{:02}"),
    DailyMinTemperaturesDataset: (cyreal.datasets.DailyMinTemperaturesDataset, '"Date","Temp"', "1981-01-{:02}"),
}
both_kinds = pytest.mark.parametrize("kind", KINDS)


def write_series(folder, kind, count=120):
    """The file of a data set, with other values and fewer; returns them."""
    values = np.random.default_rng(count).integers(-90, 2500, count) / 10
    _, names, date = KINDS[kind]
    lines = [names, *(f'"{date.format(n + 1)}",{value}' for n, value in enumerate(values))]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / kind.filename).write_text("\n".join(lines))  # as the true ones, without an end of the last line
    return values.astype(np.float32)


def same(ours, other):
    assert ours.keys() == other.keys()
    for key, value in ours.items():
        expected = np.asarray(other[key])
        assert value.dtype == expected.dtype and value.shape == expected.shape and (value == expected).all()


@both_kinds
@pytest.mark.parametrize("arguments", [{}, {"context_length": 5, "prediction_length": 3, "val_fraction": 0.1}])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_series_is_cyreals(kind, arguments, split, tmp_path):
    if split == "val" and not arguments:
        arguments = {"val_fraction": 0.15}
    write_series(tmp_path, kind)
    ours = kind(split, cache_dir=tmp_path, **arguments)
    other = KINDS[kind][0](split, cache_dir=tmp_path, **arguments)
    assert len(ours) == len(other) > 0
    same(ours.as_array_dict(), other.as_array_dict())
    same(ours[2], other[2])
    same(kind(split, data_path=tmp_path / kind.filename, **arguments).arrays(), other.as_array_dict())


@both_kinds
def test_the_arguments_are_cyreals(kind):
    def arguments(function):
        return [(each.name, each.default) for each in inspect.signature(function).parameters.values()]

    assert arguments(kind) == arguments(KINDS[kind][0])
    for function in time_utils.__all__:
        wanted = dict(arguments(getattr(theirs, function)))
        given_ours = dict(arguments(getattr(time_utils, function)))
        assert list(given_ours) == list(wanted)
        assert all(given_ours[name] == default for name, default in wanted.items() if default is not inspect._empty)


@both_kinds
def test_a_series_goes_through_a_loader(kind, tmp_path):
    write_series(tmp_path, kind)
    windows = dataset_to_jax(kind(cache_dir=tmp_path))
    sources = (
        ArraySource(windows, ordering="sequential"),
        kind.make_disk_source(cache_dir=tmp_path, ordering="sequential", prefetch_size=8),
    )
    for source in sources:
        loader = DataLoader([source, BatchTransform(16)])
        seen = {"context": [], "target": []}
        for batch, mask in loader.iterate(loader.init_state(0)):
            for key, rows in seen.items():
                rows.append(np.asarray(batch[key])[np.asarray(mask)])
        same({key: np.concatenate(rows) for key, rows in seen.items()}, windows)


@both_kinds
def test_without_the_file_the_place_is_told(kind, tmp_path, monkeypatch):
    def nowhere(*arguments, **options):
        raise OSError("no network")

    monkeypatch.setattr(downloads.urllib.request, "urlopen", nowhere)
    with pytest.raises(FileNotFoundError) as raised:
        kind(cache_dir=tmp_path)
    assert f"{kind.filename} is not in {tmp_path}" in str(raised.value)
    with pytest.raises(FileNotFoundError, match=r"data_path is .*other.csv, but there is no such file"):
        kind(data_path=tmp_path / "other.csv")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('"Date","Temp"\n"1981-01-01",20.7\n"1981-01-02",?0.2', "no number in column 1 of line 3"),
        ('"Date","Temp"\n"1981-01-01"\n', "no number in column 1 of line 2"),
        ('"Date","Temp"\n"1981-01-01",nan\n', "has the value nan, which is not a finite number."),
        ('"Date","Temp"\n', "has no values after its first 1 lines"),
        ("<html>\n<body>404</body>", "no number in column 1 of line 2"),
    ],
)
def test_a_damaged_series_is_told(text, sentence, tmp_path):
    path = tmp_path / DailyMinTemperaturesDataset.filename
    path.write_text(text)
    with pytest.raises(DamagedFile) as raised:
        DailyMinTemperaturesDataset(cache_dir=tmp_path)
    assert str(path) in str(raised.value) and sentence in str(raised.value)
    assert "Delete the file to download it again." in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"split": "valid"}, 'split must be "train", "val" or "test", got \'valid\'. Did you mean "val"?'),
        ({"split": "val"}, "val_fraction is 0"),
        ({"train_fraction": 0.7, "val_fraction": 0.3}, "their sum below 1: got 0.7 and 0.3"),
        ({"context_length": 0}, "window_size must be positive, but got 0"),
        ({"prediction_length": 0}, "window_size must be positive, but got 0"),
        ({"context_length": 96}, "A window of 1 steps from step 96 on does not fit into a series of 96 steps"),
    ],
)
def test_wrong_arguments_are_told(arguments, sentence, tmp_path):
    write_series(tmp_path, SunspotsDataset)
    with pytest.raises(ValueError, match=sentence):
        SunspotsDataset(cache_dir=tmp_path, **arguments)


# ---------------------------------------------------------------------------------------------------------------------
# Windows: laws, with cyreal beside


def answered(function, *arguments, **options):
    """What a function gives, or None where it refuses."""
    try:
        return function(*arguments, **options)
    except ValueError:
        return None


SHAPES = st.one_of(
    st.tuples(st.integers(1, 40)),
    st.tuples(st.integers(1, 40), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 3)),
)
PARTS = st.fixed_dictionaries(
    {
        "split": st.sampled_from(["train", "val", "test"]),
        "train_fraction": st.floats(0.05, 0.95),
        "val_fraction": st.sampled_from([0.0, 0.04, 0.3]),
    }
)


def numbered(shape, start=0):
    return np.arange(start, start + np.prod(shape)).reshape(shape)


@given(shape=SHAPES, parts=PARTS, context=st.integers(0, 9))
@settings(deadline=None)
def test_splits_are_cyreals(shape, parts, context):
    ours, other = (
        answered(f.select_split, numbered(shape), context_length=context, **parts) for f in (time_utils, theirs)
    )
    assert (ours is None) == (other is None)
    if ours is not None and other is not None:
        assert np.array_equal(ours, other)


@given(shape=SHAPES, size=st.integers(-1, 9), stride=st.integers(0, 4), offset=st.integers(-1, 9))
@settings(deadline=None)
def test_windows_are_cyreals(shape, size, stride, offset):
    ours, other = (answered(f.sliding_window_many, numbered(shape), size, stride, offset) for f in (time_utils, theirs))
    assert (ours is None) == (other is None)
    if ours is not None and other is not None:
        assert np.array_equal(ours, other)


@given(shape=SHAPES, parts=PARTS, context=st.integers(1, 9), prediction=st.integers(1, 9))
@settings(deadline=None)
def test_targets_follow_their_contexts(shape, parts, context, prediction):
    pair, other = (
        answered(
            f.prepare_time_series_windows,
            numbered(shape),
            context_length=context,
            prediction_length=prediction,
            **parts,
        )
        for f in (time_utils, theirs)
    )
    assert (pair is None) == (other is None)
    if pair is None or other is None:
        return
    contexts, targets = pair
    assert contexts.shape[:-1] == targets.shape[:-1] and (contexts.shape[-1], targets.shape[-1]) == (
        context,
        prediction,
    )
    step = shape[-1] if len(shape) > 1 else 1  # what a number grows by from one time to the next
    assert (targets[..., 0] == contexts[..., -1] + step).all()
    if len(shape) != 2:  # there cyreal pairs windows of different times
        assert np.array_equal(contexts, other[0]) and np.array_equal(targets, other[1])


@given(
    shape=SHAPES,
    parts=PARTS,
    lengths=st.tuples(st.integers(1, 6), st.integers(1, 9)),
    stride=st.integers(1, 3),
    offset=st.integers(0, 6),
)
@settings(deadline=None)
def test_windows_of_two_series_are_of_one_time(shape, parts, lengths, stride, offset):
    inputs, outputs = numbered(shape), numbered(shape, 1000)
    options = {"sliding_window_stride": stride, "target_offset": offset, **parts}
    split = options.pop("split")
    pair = answered(time_utils.prepare_seq_to_seq_windows, inputs, outputs, split, *lengths, **options)
    other = answered(theirs.prepare_seq_to_seq_windows, inputs, outputs, split, *lengths, **options)
    assert (pair is None) == (other is None)
    assume(pair is not None and other is not None)
    assert pair is not None and other is not None
    contexts, targets = pair
    steps = 2 if len(shape) == 3 else -1
    first = [np.take(windows, 0, steps) for windows in pair]
    assert (contexts.shape[steps], targets.shape[steps]) == lengths
    step = shape[-1] if len(shape) > 1 else 1
    assert (first[1] == first[0] + 1000 + offset * step).all()
    if len(shape) == 3 and lengths[0] <= offset + lengths[1]:  # elsewhere cyreal's windows are cut or have no partner
        assert np.array_equal(contexts, other[0]) and np.array_equal(targets, other[1])


def test_series_of_different_lengths_are_refused():
    for shapes in (((9,), (8,)), ((2, 9, 1), (3, 9, 1)), ((9, 2), (2, 9, 2))):
        with pytest.raises(ValueError, match="must have the same number of steps and the same batch size"):
            time_utils.prepare_seq_to_seq_windows(np.zeros(shapes[0]), np.zeros(shapes[1]), "train", 2, 2)
    with pytest.raises(ValueError, match="with one target for each context"):
        time_utils.make_sequence_disk_source(contexts=np.zeros((3, 2)), targets=np.zeros((2, 2)))
    with pytest.raises(ValueError, match="A time series needs at least one step"):
        time_utils.sliding_window_many(np.zeros(0), 1)
