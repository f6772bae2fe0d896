"""The first elements of 33 pipelines are those of the last release: `golden_streams.py` says what is compared."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import golden_streams
from helpers.golden_streams import NEEDS, STREAMS, explain, kept, stream, summarize

from bushel import IterDataset, MapDataset, MultiprocessingOptions

KEPT = kept()
WORKERS = MultiprocessingOptions(num_workers=2)


@pytest.mark.parametrize("name", STREAMS)
def test_the_elements_are_those_of_the_last_release(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    now = summarize(STREAMS[name]())
    assert KEPT.get(name, {}).get("sha256") == now["sha256"], explain(name, KEPT.get(name), now)


def test_no_digest_is_kept_for_a_stream_that_is_gone():
    assert set(KEPT) == set(STREAMS)
    assert len({entry["sha256"] for entry in KEPT.values()}) == len(KEPT)


@pytest.mark.parametrize(
    "name", ["seeds_of_later_operations", "mix_with_a_schedule", "packing_first_fit", "interleave"]
)
def test_workers_do_not_change_them(name):
    ds = STREAMS[name]()
    assert isinstance(ds, (MapDataset, IterDataset))
    in_order = ds.to_iter_dataset() if isinstance(ds, MapDataset) else ds
    with iter(in_order.mp_prefetch(WORKERS)) as elements:
        assert summarize(elements) == KEPT[name]


def test_a_changed_order_is_found_and_explained(monkeypatch, capsys):
    """One element in another place is enough, and the message says what to do."""
    monkeypatch.setattr(golden_streams, "STREAMS", {})

    @stream
    def shuffle():
        elements = list(MapDataset.range(1000).shuffle(seed=42))
        elements[38], elements[39] = elements[39], elements[38]
        return elements

    monkeypatch.setattr("sys.argv", ["golden_streams.py"])
    assert golden_streams.main() == 1
    said = capsys.readouterr().out
    assert "The elements of the pipeline 'shuffle' in tests/helpers/golden_streams.py have changed." in said
    assert "CHANGELOG.md" in said
    assert "--write" in said
    assert "0 of 1 streams are as kept." in said


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, np.int64(1)),
        (True, 1),
        (np.zeros(2, np.int32), np.zeros(2, np.int64)),
        (np.zeros((2, 1)), np.zeros((1, 2))),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        ([1, [2]], [[1], 2]),
    ],
    ids=["class", "bool", "dtype", "shape", "keys", "nesting"],
)
def test_digests_tell_elements_apart(one, other):
    assert summarize([one])["sha256"] != summarize([other])["sha256"]


def test_digests_do_not_see_the_layout_in_memory():
    array = np.arange(6).reshape(2, 3)
    same = [np.asfortranarray(array), array.astype(">i8"), array.repeat(2, axis=1)[:, ::2]]
    assert {summarize([other])["sha256"] for other in same} == {summarize([array])["sha256"]}
