"""A dataset prints as the code that builds it, and shows as a table in a notebook."""

import dataclasses
import functools
import html.parser
import re

import numpy as np
import pytest

import bushel
from bushel import IterDataset, MapDataset
from bushel._src.base import shown_text
from bushel.experimental import ZipMapDataset
from bushel.sources import ArrayDataSource


def normalise(x):
    return x


@dataclasses.dataclass
class Scale(bushel.transforms.Map):
    by: float

    def map(self, element):
        return element * self.by


class Crop(bushel.transforms.RandomMap):
    def random_map(self, element, rng):
        return element


class Split(bushel.transforms.FlatMap):
    max_fan_out = 2

    def flat_map(self, element):
        return [element]


class Records:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index


class Named(Records):
    def __repr__(self):
        return "Named('train')"


class Doubled(MapDataset):
    def __init__(self, parent):
        super().__init__(parent)

    def __len__(self):
        return len(self._parent)

    def __getitem__(self, index):
        return self._parent[index] * 2


def ten():
    return MapDataset.range(10)


# These read as code that builds the same pipeline: it is run, and compared.
CODE = {
    "range": (ten, "MapDataset.range(10)"),
    "range from": (lambda: MapDataset.range(2, 10), "MapDataset.range(2, 10)"),
    "range by": (lambda: MapDataset.range(0, 10, 3), "MapDataset.range(0, 10, 3)"),
    "shuffle": (lambda: ten().shuffle(seed=3), "MapDataset.range(10).shuffle(seed=3)"),
    "seed": (lambda: ten().seed(42).shuffle(), "MapDataset.range(10).seed(42).shuffle(seed=3329053876)"),
    "slice": (lambda: ten()[2:], "MapDataset.range(10).slice(slice(2, 10))"),
    "shard": (lambda: ten()[1::4], "MapDataset.range(10).slice(slice(1, 10, 4))"),
    "repeat": (lambda: ten().repeat(2), "MapDataset.range(10).repeat(2)"),
    "same epoch": (
        lambda: ten().repeat(2, reseed_each_epoch=False),
        "MapDataset.range(10).repeat(2, reseed_each_epoch=False)",
    ),
    "map": (lambda: ten().map(normalise), "MapDataset.range(10).map(normalise)"),
    "vectorized": (lambda: ten().map(np.sin, vectorized=True), "MapDataset.range(10).map(sin, vectorized=True)"),
    "transform": (lambda: ten().map(Scale(2.0)), "MapDataset.range(10).map(Scale(by=2.0))"),
    "filter": (lambda: ten().filter(normalise), "MapDataset.range(10).filter(normalise)"),
    "batch": (lambda: ten().batch(4), "MapDataset.range(10).batch(4)"),
    "batch that drops": (
        lambda: ten().batch(4, drop_remainder=True),
        "MapDataset.range(10).batch(4, drop_remainder=True)",
    ),
    "batch_fn": (lambda: ten().batch(4, batch_fn=list), "MapDataset.range(10).batch(4, batch_fn=list)"),
    "stream": (
        lambda: ten().to_iter_dataset().map(normalise).batch(2),
        "MapDataset.range(10).to_iter_dataset().map(normalise).batch(2)",
    ),
    "stream with missing elements": (
        lambda: ten().to_iter_dataset(allow_nones=True),
        "MapDataset.range(10).to_iter_dataset(allow_nones=True)",
    ),
    "mix": (
        lambda: MapDataset.mix([ten(), MapDataset.range(5).shuffle(seed=1)], [1, 2]).batch(3),
        """\
MapDataset.mix([
        MapDataset.range(10),
        MapDataset.range(5).shuffle(seed=1),
    ], weights=[100, 200])
    .batch(3)""",
    ),
    "concatenate": (
        lambda: MapDataset.concatenate([ten(), ten()]),
        """\
MapDataset.concatenate([
        MapDataset.range(10),
        MapDataset.range(10),
    ])""",
    ),
    "concatenate one": (
        lambda: MapDataset.concatenate([ten()]),
        """\
MapDataset.concatenate([
        MapDataset.range(10),
    ])""",
    ),
    "stream mix": (
        lambda: IterDataset.mix([ten().to_iter_dataset(), ten()[:5].to_iter_dataset()]),
        """\
IterDataset.mix([
        MapDataset.range(10).to_iter_dataset(),
        MapDataset.range(10).slice(slice(0, 5)).to_iter_dataset(),
    ], weights=[100, 100])""",
    ),
}

NAMES = {
    "MapDataset": MapDataset,
    "IterDataset": IterDataset,
    "normalise": normalise,
    "Scale": Scale,
    "sin": np.sin,
}


@pytest.mark.parametrize(("build", "text"), CODE.values(), ids=CODE)
def test_a_dataset_reads_as_it_was_written(build, text):
    assert repr(build()) == text


@pytest.mark.parametrize(("build", "text"), CODE.values(), ids=CODE)
def test_what_it_reads_as_builds_it_again(build, text):
    again = eval(f"({text})", dict(NAMES))
    assert repr(again) == text
    assert bushel.testing.same(list(again), list(build()))


# These read well, but name what code alone cannot say.
WORDS = {
    "list": (lambda: MapDataset.source(["a", "b"]), "MapDataset.source(list of 2)"),
    "array": (lambda: MapDataset.source(np.zeros((3, 2))), "MapDataset.source(float64[3, 2])"),
    "arrays": (
        lambda: MapDataset.source(ArrayDataSource({"x": np.zeros((3, 2), np.uint8)})),
        "MapDataset.source(ArrayDataSource({'x': uint8[3, 2]}))",
    ),
    "source of one's own": (lambda: MapDataset.source(Records()), "MapDataset.source(Records)"),
    "source with a name": (lambda: MapDataset.source(Named()), "MapDataset.source(Named('train'))"),
    "lambda": (lambda: ten().map(lambda x: x), "MapDataset.range(10).map(<lambda>)"),
    "partial": (lambda: ten().map(functools.partial(pow, 2)), "MapDataset.range(10).map(partial(pow))"),
    "random map": (
        lambda: ten().random_map(Crop(), seed=7),
        "MapDataset.range(10).random_map(Crop, seed=7)",
    ),
    "positions": (lambda: ten().slice([1, 2, 3]), "MapDataset.range(10).slice([3 positions])"),
    "endless": (lambda: ten().repeat(), "MapDataset.range(10).repeat()"),
    "flat_map": (lambda: ten().apply(Split()), "MapDataset.range(10).flat_map(Split)"),
    "dataset of one's own": (lambda: ten().pipe(Doubled).batch(2), "MapDataset.range(10).pipe(Doubled).batch(2)"),
    "zip": (
        lambda: ZipMapDataset([ten(), ten().map(str)]).batch(2),
        """\
MapDataset.zip([
        MapDataset.range(10),
        MapDataset.range(10).map(str),
    ])
    .batch(2)""",
    ),
    "mix by key": (
        lambda: IterDataset.mix({"a": ten().to_iter_dataset(), "b": ten().to_iter_dataset()}, {"a": 1, "b": 3}),
        """\
IterDataset.mix([
        MapDataset.range(10).to_iter_dataset(),
        MapDataset.range(10).to_iter_dataset(),
    ], weights={'a': 100, 'b': 300})""",
    ),
    "long": (
        lambda: ten().seed(1).shuffle().map(normalise).batch(2, drop_remainder=True).repeat().to_iter_dataset(),
        """\
MapDataset.range(10)
    .seed(1)
    .shuffle(seed=1189033389)
    .map(normalise)
    .batch(2, drop_remainder=True)
    .repeat()
    .to_iter_dataset()""",
    ),
}


@pytest.mark.parametrize(("build", "text"), WORDS.values(), ids=WORDS)
def test_a_dataset_reads_well(build, text):
    assert repr(build()) == text


def test_nothing_is_read_to_print():
    class Unread(Records):
        def __getitem__(self, index):
            raise AssertionError("a record was read")

    ds = MapDataset.source(Unread()).shuffle(seed=1).batch(2)
    repr(ds)
    ds._repr_html_()


# The table.


class Table(html.parser.HTMLParser):
    """Cells of a table; refuses tags that are not closed in their order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.rows[-1][-1] += data


def rows(ds):
    return Table(ds._repr_html_()).rows


def test_the_table_has_a_row_for_each_step():
    source = ArrayDataSource({"x": np.zeros((5, 2), np.float32), "y": np.zeros(5, np.int8)})
    ds = MapDataset.source(source).seed(0)[:4].batch(2, drop_remainder=True).repeat()
    assert rows(ds) == [
        ["step", "length", "element"],
        ["source(ArrayDataSource({'x': float32[5, 2], 'y': int8[5]}))", "5", "{'x': float32[2], 'y': int8[]}"],
        ["seed(0)", "5", "{'x': float32[2], 'y': int8[]}"],
        ["slice(slice(0, 4))", "4", "{'x': float32[2], 'y': int8[]}"],
        ["batch(2, drop_remainder=True)", "2", "{'x': float32[2, 2], 'y': int8[2]}"],
        ["repeat()", "endless", "{'x': float32[2, 2], 'y': int8[2]}"],
    ]


def test_the_table_leaves_open_what_is_not_known():
    ds = MapDataset.source(Records()).map(str).to_iter_dataset()
    assert rows(ds)[1:] == [
        ["source(Records)", "3", ""],
        ["map(str)", "3", ""],
        ["to_iter_dataset()", "3", ""],
    ]


def test_describe_reads_one_element_where_shapes_are_not_known():
    ds = MapDataset.source(Records()).map(lambda x: np.zeros((x + 1, 2), np.float32)).filter(lambda x: len(x) > 1)
    assert [step[2] for step in ds.to_iter_dataset().describe().steps] == [
        "int",
        "float32[1, 2]",
        "float32[2, 2]",
        "float32[2, 2]",
    ]


def test_describe_shows_where_reading_fails():
    ds = MapDataset.range(3).map(lambda x: x // 0).batch(2)
    steps = ds.describe().steps
    assert [step[0] for step in steps] == ["range(3)", "map(<lambda>)", "batch(2)"]
    assert steps[0][2] == "int64[]" and steps[1][2].startswith("fails: ZeroDivisionError")
    assert Table(ds.describe()._repr_html_()).rows[2][2].startswith("fails: ZeroDivisionError")


def test_reports_explanations_and_iterators_show_as_tables():
    ds = MapDataset.mix([ten(), MapDataset.range(5)]).map(str)
    it = iter(ds.to_iter_dataset().batch(2).with_options(execution_tracking_mode="stage_timing"))
    assert it._repr_html_().startswith("<p>&lt;iterator of")
    assert "<td><code>batch(2)</code></td>" in it._repr_html_()
    list(it)
    assert "<td><code>map(str)</code></td>" in it.report()._repr_html_()
    assert it.report().verdict.split()[0] in it.report()._repr_html_()
    cells = Table(ds.origin(3)._repr_html_().partition("</p>")[2]).rows
    assert cells == [["source", "record", "epoch", "component"], ["range(5)", "1", "0", "1"]]


def test_dtypes_read_alike_however_they_were_given():
    assert rows(ten())[1] == ["range(10)", "10", "int64[]"]
    assert rows(MapDataset.range(12_345).batch(5))[2] == ["batch(5)", "2,469", "int64[None]"]


def test_the_table_of_a_mixture_has_all_its_parts():
    ds = MapDataset.mix([ten(), MapDataset.range(5)])
    assert [row[0] for row in rows(ds)] == ["step", "range(10)", "range(5)", "mix(weights=[1, 1])"]


def test_what_is_in_the_table_is_escaped():
    class Tricky(Records):
        def __repr__(self):
            return "<script>alert('&')</script>"

    ds = MapDataset.source(Tricky()).map(lambda x: x)
    text = ds._repr_html_()
    assert "<script>" not in text
    assert rows(ds)[1][0] == "source(<script>alert('&')</script>)"
    assert rows(ds)[2][0] == "map(<lambda>)"


def test_what_is_returned_shows_as_its_table():
    """In a notebook's last line, in a debugger and on Python's prompt."""
    ds = ten().map(str)
    assert repr(ds.describe()) == str(ds.describe()) and repr(ds.describe()).startswith("step       length  element")
    assert repr(ds.origin(3)) == "element 3 is made of\n  record 3 of range(10), epoch 0"
    with iter(ds.to_iter_dataset().with_options(execution_tracking_mode="stage_timing")) as it:
        next(it)
        assert repr(it.report()) == str(it.report()) and repr(it.report()).startswith("stage ")


def test_wide_elements_are_broken_into_lines(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    source = ArrayDataSource({f"joint_{number}": np.zeros((5, 2), np.float32) for number in range(9)})
    lines = str(MapDataset.source(source).shuffle(seed=0).batch(2).describe()).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("(the same)" in line for line in lines) == 1  # after the shuffle
    words = " ".join(" ".join(lines).split())
    assert all(f"'joint_{number}': float32[None, 2]" in words for number in range(9))


def test_a_table_has_no_line_that_is_too_wide():
    for width in (60, 80, 100):
        rows = [("map(" + "x" * 30 + ")", "12", ", ".join(["'a': int64[]"] * 12)), ("b", "3", "y" * 150)]
        text = shown_text.as_text(("step", "length", "element"), rows, left=3, width=width)
        assert max(map(len, text.splitlines())) <= width
        assert text.count("'a': int64[]") == 12


def test_equal_records_of_an_element_are_one_line():
    ds = MapDataset.source(["a", "b"]).slice([0] * 45 + [1]).batch(46)
    assert repr(ds.origin(0)) == (
        "element 0 is made of\n  record 0 of list of 2, epoch 0 (45 times)\n  record 1 of list of 2, epoch 0"
    )
    cells = Table(ds.origin(0)._repr_html_().partition("</p>")[2]).rows
    assert cells == [
        ["source", "record", "epoch", "component", "times"],
        ["list of 2", "0", "0", "", "45"],
        ["list of 2", "1", "0", "", "1"],
    ]
    assert len(ds.origin(0).records) == 46


def test_an_element_of_many_records_takes_few_lines(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ds = MapDataset.mix([MapDataset.range(100).shuffle(seed=0), MapDataset.range(7).slice([3] * 60)]).batch(96)
    explanation = ds.origin(0)
    head, *lines = repr(explanation).splitlines()
    assert head == "element 0 is made of" and 4 <= len(lines) <= 8 and max(map(len, lines)) <= 80
    words = " ".join("".join(line[1:] for line in lines).split())
    first, second = words.split("1 record of ")
    numbers = [record.record for record in explanation.records if record.component == (0,)]
    assert first.strip() == f"48 records of range(100), epoch 0, component 0: {', '.join(map(str, numbers))}"
    assert second.startswith("range(7), epoch 0, component 1: 3 (48 times)")


ENDLESS = {
    "repeat": lambda: ten().repeat(),
    "batch": lambda: ten().repeat().batch(2),
    "slice": lambda: ten().repeat()[3:],
    "shard": lambda: ten().repeat()[1::4],
    "mix": lambda: MapDataset.mix([ten().repeat(), ten().repeat()]),
    "restart": lambda: MapDataset.mix([ten(), ten()], exact=True, when_exhausted="restart"),
    "source": lambda: MapDataset.source(ten().repeat()),
}
SHOWN = {
    "repr": repr,
    "html": lambda ds: ds._repr_html_(),
    "describe": lambda ds: repr(ds.describe()) + ds.describe()._repr_html_(),
    "stream": lambda ds: repr(ds.to_iter_dataset().batch(3)) + repr(ds.to_iter_dataset().batch(3).describe()),
    "iterator": lambda ds: repr(iter(ds)),
    "origin": lambda ds: repr(ds.origin(5)),
    "mixture": lambda ds: repr(MapDataset.mix([ds, ten()]).describe()),
    "where": lambda ds: ds.where([True]),
    "pack": lambda ds: ds.pack([1], 2),
    "bucket": lambda ds: ds.bucket([1], [2], 3, seed=0),
    "zip": lambda ds: ds.zip(MapDataset.range(3)),
    "len": lambda ds: len(ds.to_iter_dataset()),
    "save": lambda ds: ds.save("nowhere", format="bagz"),
    "cache": lambda ds: ds.to_iter_dataset().cache(),
    "state": lambda ds: iter(ds).set_state({"next_index": -1}, check=False),
}


@pytest.mark.parametrize("how", SHOWN)
@pytest.mark.parametrize("ds", ENDLESS)
def test_no_endless_dataset_shows_a_number_of_elements(ds, how):
    try:
        text = str(SHOWN[how](ENDLESS[ds]()))
    except (TypeError, ValueError, IndexError) as error:
        text = str(error)
    assert not re.search(r"\d[\d,]{13,}", text), text
