"""`bushel.explain_identity`, and the names that the message of a refused state has."""

import functools
import json
import os
import types

import numpy as np
import pytest
from helpers.state_mismatches import DETAILS, saved

import bushel
from bushel import IterDataset, MapDataset, StateMismatch

SCALE = 2
TABLE = {"a": 1}


def helper(x):
    return x * SCALE


def uses_helper(x):
    return helper(x) + TABLE["a"] + np.mean([x])


class Transform(bushel.transforms.Map):
    KIND = "k"

    def __init__(self, by):
        self.by, self.numbers = by, iter("ab")

    def map(self, x):
        return x * self.by


class Reads:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return open(os.devnull).read()


def rows_of(ds, operation):
    found = bushel.explain_identity(ds)
    return {(part.what, part.how) for part in found.parts if part.operation.startswith(operation)}


def test_explain_identity_lists_what_functions_reach():
    ds = MapDataset.range(10).map(uses_helper).map(Transform(3)).shuffle(seed=1)
    assert rows_of(ds, "map(uses_helper)") >= {
        ("uses_helper", "function"),
        ("helper", "function"),
        ("SCALE", "global"),
        ("TABLE", "global"),
        ("numpy.mean", "by name (library)"),
    }
    found = rows_of(ds, "map(Transform)")
    assert found >= {("Transform", "class"), ("Transform().by", "attribute"), ("Transform.KIND", "class attribute")}
    assert any(what == "Transform().numbers" and "only its type: str_" in how for what, how in found), found
    assert rows_of(ds, "shuffle") == {("parameters", "all values")}


@pytest.mark.parametrize(
    ("source", "in_state", "on_disk"),
    [
        ([1, 2], "in a state: in full", "in full"),
        (list(range(200_000)), "in a state: samples", "in full"),
        (Reads(), "in a state: its class, attributes, length and repr", "unknown: its code may read more"),
        (bushel.sources.FileDataSource(__file__), "by fingerprint", "by fingerprint"),
    ],
    ids=["list", "long list", "unknown", "files"],
)
def test_explain_identity_says_how_data_are_compared(source, in_state, on_disk):
    (first, second) = (
        part.how for part in bushel.explain_identity(MapDataset.source(source)).parts if part.what == "data"
    )
    assert first == in_state
    assert second.startswith("in cache(folder), save, column(cache_dir=...): " + on_disk)


def test_explain_identity_returns_a_table_and_takes_iterators_and_streams():
    ds = MapDataset.range(10).map(helper)
    table = bushel.explain_identity(ds)
    assert repr(table).splitlines()[0].split() == ["operation", "what", "how", "digest"]
    assert "<code>SCALE</code>" in table._repr_html_()
    stream = ds.to_iter_dataset().batch(2)
    assert bushel.explain_identity(stream) == bushel.explain_identity(iter(stream))
    with pytest.raises(TypeError, match="explain_identity takes"):
        bushel.explain_identity([1])


def test_one_digest_changes_with_one_value():
    def digests(scale):
        function = types.FunctionType(helper.__code__, {"SCALE": scale, "__name__": "mine"}, "helper")
        parts = bushel.explain_identity(MapDataset.range(3).map(function)).parts
        return {part.what: part.digest for part in parts if part.how in ("function", "global")}

    one, other = digests(2), digests(3)
    assert one["helper"] == other["helper"]
    assert one["SCALE"] != other["SCALE"]


def message(old, new):
    with iter(new) as it, pytest.raises(StateMismatch) as raised:
        it.set_state(saved(old))
    return [line.strip() for line in str(raised.value).splitlines() if line.startswith(DETAILS)]


def make(scale, *, helper_text="x * SCALE", more=""):
    names = {"__name__": "mine"}
    exec(f"SCALE = {scale}\ndef helper(x): return {helper_text}\n{more}\ndef f(x): return helper(x)\n", names)
    return MapDataset.range(10).map(names["f"])


def test_a_message_names_what_has_changed():
    assert message(make(1), make(2)) == ["`SCALE` changed"]
    assert message(make(1), make(1, helper_text="x + SCALE")) == ["`helper` changed"]
    assert message(make(1), make(1, helper_text="x * 5")) == ["`helper` changed, `SCALE` is gone"]
    assert message(make(1, helper_text="x * 5"), make(1)) == ["`helper` changed, `SCALE` is new"]
    assert message(MapDataset.range(10).map(Transform(1)), MapDataset.range(10).map(Transform(2))) == [
        "`Transform().by` changed"
    ]


def test_a_state_without_names_is_compared_all_the_same():
    state = saved(make(1))
    inner = state["bushel"]["identity"][3][0]
    inner[2] = inner[2].partition(";")[0]
    iter(make(1)).set_state(state)
    with pytest.raises(StateMismatch, match=r"same name, other code\n" + "Pass"):
        iter(make(2)).set_state(state)


def test_states_stay_small():
    assert len(json.dumps(saved(make(1)))) < 500
    many = MapDataset.mix([make(1) for _ in range(200)])
    assert len(json.dumps(saved(many))) < 200 * 200
    names = {"__name__": "mine"}
    exec(
        "".join(f"A{n} = {n}\n" for n in range(500)) + f"def f(x): return {'+'.join(f'A{n}' for n in range(500))}",
        names,
    )
    wide = MapDataset.range(3).map(names["f"])
    assert len(json.dumps(saved(wide))) < 1500
    names["A499"] = -1
    with pytest.raises(StateMismatch):
        iter(MapDataset.range(3).map(names["f"])).set_state(saved(wide))


def test_a_function_of_many_parts_is_read_once(monkeypatch):
    from bushel._src.state import identity

    examined = []
    examine = identity.examine
    monkeypatch.setattr(
        identity, "examine", lambda *values, **options: examined.append(values[0]) or examine(*values, **options)
    )
    ds = IterDataset.mix([MapDataset.range(5).map(helper).to_iter_dataset() for _ in range(50)])
    iter(ds).get_state()
    assert examined.count(helper) == 1


def test_a_large_array_is_read_once(monkeypatch):
    from bushel._src.state import digest

    array = np.zeros(1 << 20)
    reads = []
    plain = digest.hashlib.blake2b

    def counted(*data, digest_size=8):
        reads.append(digest_size)
        return plain(*data, digest_size=digest_size)

    monkeypatch.setattr(digest.hashlib, "blake2b", counted)
    parts = [MapDataset.range(5).map(functools.partial(np.add, array)) for _ in range(20)]
    iter(MapDataset.mix(parts)).get_state()
    assert reads.count(16) == 1


def test_all_data_of_a_source_are_read_once(monkeypatch, tmp_path):
    from bushel._src.state import digest

    reads = []
    plain = digest.hashlib.blake2b

    def counted(*data, digest_size=8):
        reads.append(digest_size)
        return plain(*data, digest_size=digest_size)

    monkeypatch.setattr(digest.hashlib, "blake2b", counted)
    ds = MapDataset.source(np.zeros(1 << 20)).map(float)
    it = iter(ds)
    next(it)
    it.get_state()
    assert reads.count(16) == 0  # a state reads samples of large data
    list(ds[:3].to_iter_dataset().cache(tmp_path / "cache"))
    bushel.explain_identity(ds)
    assert reads.count(16) == 1
