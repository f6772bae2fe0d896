"""Parquet and Arrow files: written by pyarrow, read as rows, at any position and in order, as Grain reads them."""

import base64
import pickle

import grain
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.ipc
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest
from helpers.processes import run_script
from helpers.record_formats import in_eight_threads, table
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel import DamagedFile, MapDataset
from bushel.experimental import ParquetIterDataset
from bushel.sources import ArrowDataSource, Columns, ParquetDataSource
from bushel.testing import check_resumes_anywhere, same

COUNT = 53


NUMBERS = ["id", "score", "flag"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    for number in range(3):
        pq.write_table(table(shift=100 * number), folder / f"part-{number}.parquet", row_group_size=10)
        feather.write_feather(table(shift=100 * number), str(folder / f"part-{number}.arrow"), chunksize=10)
    return folder


def grains(paths, **options):
    return grain.experimental.ParquetIterDataset(paths, **options)


SOURCES = {"parquet": ParquetDataSource, "arrow": ArrowDataSource}
both = pytest.mark.parametrize("kind", SOURCES)


@both
def test_rows_are_those_that_grain_reads_in_order(kind, files):
    source = SOURCES[kind](files / f"part-0.{kind}")
    # Grain converts a row group at a time; files are written with the same chunks.
    expected = list(grains(str(files / "part-0.parquet")))
    assert same([source[index] for index in range(COUNT)], expected)
    assert same(list(MapDataset.source(source)), expected)


@both
@settings(max_examples=30, deadline=None)
@given(indices=st.lists(st.integers(0, 3 * COUNT - 1), max_size=20), numbers=st.booleans())
def test_many_rows_are_those_one_by_one(kind, files, indices, numbers):
    source = SOURCES[kind](str(files / f"part-*.{kind}"), columns=NUMBERS if numbers else None)
    block = source.__getitems__(indices)
    rows = block.rows() if isinstance(block, Columns) else block
    assert isinstance(block, Columns) == (numbers and bool(indices))
    assert same(rows, [source[index] for index in indices])


@both
def test_pipelines_read_shuffle_slice_and_resume(kind, files):
    source = SOURCES[kind](str(files / f"part-*.{kind}"), columns=["id", "text"])
    ds = MapDataset.source(source).shuffle(seed=4)
    order = [int(n) for n in MapDataset.range(3 * COUNT).shuffle(seed=4)]
    assert [row["id"] for row in ds] == [100 * (n // COUNT) + n % COUNT for n in order]
    check_resumes_anywhere(ds.batch(10).to_iter_dataset())


@both
def test_two_worker_processes_read_the_same(kind, files):
    ds = MapDataset.source(SOURCES[kind](str(files / f"part-*.{kind}"))).shuffle(seed=1).to_iter_dataset()
    with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as workers:
        assert same(list(workers), list(ds))


@both
def test_a_pickle_holds_paths_and_no_rows(kind, files):
    source = SOURCES[kind](str(files / f"part-*.{kind}"))
    source[70]
    sent = pickle.dumps(source)
    assert len(sent) < 1_500
    assert same(pickle.loads(sent)[70], source[70])


@both
def test_eight_threads_read_the_right_rows(kind, files):
    options = {"cache_bytes": 1} if kind == "parquet" else {}  # keeps one group: threads decode all the time
    source = SOURCES[kind](str(files / f"part-*.{kind}"), columns=["id", "text"], **options)
    wrong = []

    def read(seed):
        for index in np.random.default_rng(seed).integers(0, 3 * COUNT, 60).tolist():
            row, number = source[index], 100 * (index // COUNT) + index % COUNT
            if (row["id"], row["text"]) != (number, f"row {number}"):
                wrong.append(index)

    in_eight_threads(read)
    assert not wrong


def test_rows_that_came_out_are_ones_own(files):
    source = ParquetDataSource(files / "part-0.parquet", columns=["list"])
    first = source[3]["list"]
    first[:] = -1
    assert source[3]["list"].tolist() == [3, 3, 3]


def one_column(folder, kind, column):
    """A source of one column `x`; None where the format cannot hold it."""
    made, path = pa.table({"x": column}), folder / f"x.{kind}"
    try:
        pq.write_table(made, path) if kind == "parquet" else write_arrow(made, path, pa.ipc.new_file)
    except NotImplementedError:
        return None
    return SOURCES[kind](path)


def write_arrow(made, path, new, **options):
    with new(path, made.schema, **options) as file:
        file.write_table(made, max_chunksize=20)


@both
@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array(["a", None, "long" * 20], pa.string_view()), ["a", None, "long" * 20]),
        (pa.array([b"a", None, b"long" * 20], pa.binary_view()), [b"a", None, b"long" * 20]),
        (pa.RunEndEncodedArray.from_arrays([1, 3], ["a", "b"]), ["a", "b", "b"]),
        (pa.RunEndEncodedArray.from_arrays([1, 3], [7, 8]), [7, 8, 8]),
    ],
    ids=str,
)
def test_columns_of_newer_types(kind, column, expected, tmp_path):
    source = one_column(tmp_path, kind, column)
    if source is not None:
        assert [source[index]["x"] for index in range(3)] == expected
        assert [row["x"] for row in MapDataset.source(source)[::-1]] == expected[::-1]


@both
@pytest.mark.parametrize(
    "column",
    [
        pa.array([["a"], ["b"]], pa.list_(pa.string_view())),
        pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]),
    ],
    ids=["list of views", "union"],
)
def test_a_column_that_pyarrow_cannot_read_is_named(kind, column, tmp_path):
    source = one_column(tmp_path, kind, column)
    if source is not None:
        for read in (lambda: source[0], lambda: source.__getitems__([0])):
            with pytest.raises(
                ValueError, match=rf"x\.{kind}: column 'x' is of type .* choose other columns"
            ) as caught:
                read()
            assert not isinstance(caught.value, DamagedFile)


@both
def test_lists_in_lists_are_ones_own(kind, tmp_path):
    source = one_column(tmp_path, kind, pa.array([[[1, 2], [3]], [[1], [2]], [[]], [], None]))
    assert source is not None
    for place, expected in enumerate([[[1, 2], [3]], [[1], [2]], [[]], []]):
        for row in (source[place], source.__getitems__([place])[0]):
            for inner in row["x"]:
                inner[:] = -1
        assert [inner.tolist() for inner in source[place]["x"]] == expected
    assert source[4]["x"] is None


@both
def test_two_columns_of_one_name_are_refused(kind, tmp_path):
    made, path = (
        pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["a", "b", "a"]),
        tmp_path / f"x.{kind}",
    )
    pq.write_table(made, path) if kind == "parquet" else write_arrow(made, path, pa.ipc.new_file)
    for columns in (None, ["a"]):
        with pytest.raises(ValueError, match=rf"x\.{kind} has 2 columns 'a': choose other") as caught:
            SOURCES[kind](path, columns=columns)
        assert not isinstance(caught.value, DamagedFile)
    assert SOURCES[kind](path, columns=["b"])[0] == {"b": 2}


def two_fields_of_one_name():
    return pa.StructArray.from_arrays([pa.array([1, 2]), pa.array([10, 20])], names=["x", "x"])


@both
@pytest.mark.parametrize("inner", [False, True], ids=["struct", "list of structs"])
def test_two_fields_of_one_name_are_refused(kind, inner, tmp_path):
    column = two_fields_of_one_name()
    column = pa.ListArray.from_arrays([0, 1, 2], column) if inner else column
    table = pa.table({"s": column, "t": [1, 2]})
    path = tmp_path / f"x.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        feather.write_feather(table, str(path))
    with pytest.raises(ValueError, match=r"x\.\w+: the column 's[\w.]*' has 2 fields 'x': choose other columns"):
        SOURCES[kind](path)
    with pytest.raises(ValueError, match=r"This table: the column 's[\w.]*' has 2 fields 'x'"):
        MapDataset.source(table)
    assert SOURCES[kind](path, columns=["t"])[1] == {"t": 2}


@pytest.mark.parametrize("names", [["a", "a"], ["record", "record"]])
def test_no_conversion_drops_a_column(names, tmp_path):
    columns = [pa.array([b"1", b"2"]), pa.array([b"3", b"4"])]
    pq.write_table(pa.Table.from_arrays(columns, names=names), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=f"has 2 columns '{names[0]}': choose other columns, or rename them"):
        bushel.sources.convert(tmp_path / "x.parquet", tmp_path / "x.tfrecord")
    assert not list(tmp_path.glob("*tfrecord*"))


def test_one_field_of_a_struct(tmp_path):
    pq.write_table(pa.table({"x": [{"a": 1, "b": {"c": 2}}], "y": [3]}), tmp_path / "x.parquet")
    assert ParquetDataSource(tmp_path / "x.parquet", columns=["x.a"])[0] == {"x": {"a": 1}}
    assert ParquetDataSource(tmp_path / "x.parquet", columns=["x.b", "y"])[0] == {"x": {"b": {"c": 2}}, "y": 3}
    with pytest.raises(ValueError, match=r"has no column 'x\.z'; its columns are 'x', 'y'"):
        ParquetDataSource(tmp_path / "x.parquet", columns=["x.z"])


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_arrow_streams(compression, files, tmp_path):
    path = tmp_path / "x.arrow"
    write_arrow(table(), path, pa.ipc.new_stream, options=pa.ipc.IpcWriteOptions(compression=compression))
    source = ArrowDataSource(path)
    expected = ArrowDataSource(files / "part-0.arrow")
    assert same([source[index] for index in range(COUNT)], [expected[index] for index in range(COUNT)])
    assert same(list(MapDataset.source(pickle.loads(pickle.dumps(source)))), list(MapDataset.source(expected)))
    with pytest.raises(ValueError, match="has no column 'z'"):
        ArrowDataSource(path, columns=["z"])
    content = path.read_bytes()
    for kept in (8, 100, len(content) // 2, len(content) - 8, len(content) - 1):
        path.write_bytes(content[:kept])
        with pytest.raises(DamagedFile, match=r"x\.arrow is an Arrow stream without an end mark: it was cut short"):
            ArrowDataSource(path)


class Keys(encryption.KmsClient):
    """A service of keys that keeps none: for tests, a wrapped key is the key."""

    def __init__(self, settings):
        super().__init__()

    def wrap_key(self, key_bytes, master_key_identifier):
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key, master_key_identifier):
        return base64.b64decode(wrapped_key)


def test_an_encrypted_file_is_told(tmp_path):
    path = tmp_path / "x.parquet"
    for plain in (False, True):
        wanted = encryption.EncryptionConfiguration("footer", column_keys={"column": ["a"]}, plaintext_footer=plain)
        factory = encryption.CryptoFactory(Keys)
        properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), wanted)
        made = pa.table({"a": [1], "b": [2]})
        with pq.ParquetWriter(path, made.schema, encryption_properties=properties) as file:
            file.write_table(made)
        with pytest.raises(ValueError, match=r"x\.parquet (is|has) encrypted.*Pass decryption_properties") as caught:
            ParquetDataSource(path)[0]
        assert not isinstance(caught.value, DamagedFile)
    assert ParquetDataSource(path, columns=["b"])[0] == {"b": 2}


# In order.


@pytest.mark.parametrize("count", [1, 3])
def test_a_stream_is_grains_element_by_element_and_state_by_state(files, count):
    paths = [str(files / f"part-{number}.parquet") for number in range(count)]
    ours, theirs = iter(ParquetIterDataset(paths)), iter(grains(paths))
    for _ in range(count * COUNT):
        state = ours.get_state()
        state.pop("bushel")
        assert state == theirs.get_state()
        assert same(next(ours), next(theirs))
    with pytest.raises(StopIteration):
        next(ours)


@pytest.mark.parametrize("at", [0, 7, 10, 80, 158])
def test_a_state_moves_both_ways(files, at):
    paths = [str(files / f"part-{number}.parquet") for number in range(3)]
    ours, theirs = iter(ParquetIterDataset(paths)), iter(grains(paths))
    for _ in range(at):
        next(ours)
        next(theirs)
    from_grain, from_bushel = iter(ParquetIterDataset(paths)), iter(grains(paths))
    from_grain.set_state(theirs.get_state())
    state = ours.get_state()
    from_bushel.set_state(state)
    rest = list(ours)
    assert same(list(from_grain), rest)
    assert same(list(from_bushel), rest)


def test_a_stream_resumes_anywhere(files):
    check_resumes_anywhere(ParquetIterDataset(files / "part-0.parquet").map(lambda row: row["text"]).batch(4))
    check_resumes_anywhere(ParquetIterDataset(str(files / "part-*.parquet"), columns=["id"]).batch(16))


def test_only_the_asked_columns_of_a_table_are_read(files):
    assert list(next(iter(ParquetIterDataset(files / "part-0.parquet", columns=["text", "id"])))) == ["text", "id"]
    for build in (ParquetDataSource, ArrowDataSource):
        kind = "parquet" if build is ParquetDataSource else "arrow"
        assert list(build(files / f"part-0.{kind}", columns=["id", "raw"])[0]) == ["id", "raw"]
        with pytest.raises(ValueError, match="has no column 'nothing'; its columns are 'id', 'score'"):
            build(files / f"part-0.{kind}", columns=["nothing"])
    with pytest.raises(ValueError, match="has no column 'nothing'"):
        next(iter(ParquetIterDataset(files / "part-0.parquet", columns=["nothing"])))


def test_table_files_without_rows_are_empty_sources(tmp_path):
    pq.write_table(table(0), tmp_path / "empty.parquet")
    feather.write_feather(table(0), str(tmp_path / "empty.arrow"))
    for source in (ParquetDataSource(tmp_path / "empty.parquet"), ArrowDataSource(tmp_path / "empty.arrow")):
        assert len(source) == 0
        assert source.__getitems__([]) == []
        with pytest.raises(IndexError, match="index 0 is out of range for 0 records"):
            source[0]
    assert list(ParquetIterDataset(tmp_path / "empty.parquet")) == []


# Damage.


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("kept", [0, 3, 500, -1])
def test_a_file_cut_short_is_refused(kind, kept, files, tmp_path):
    path = tmp_path / f"cut.{kind}"
    path.write_bytes((files / f"part-0.{kind}").read_bytes()[:kept])
    with pytest.raises(DamagedFile, match=rf"cut\.{kind} is not a complete"):
        SOURCES[kind](path)
    if kind == "parquet":
        with pytest.raises(DamagedFile, match=r"cut\.parquet is not a complete Parquet file"):
            next(iter(ParquetIterDataset(path)))


def test_a_changed_byte_is_reported_where_pages_have_checksums(tmp_path):
    path = tmp_path / "checked.parquet"
    pq.write_table(table(), path, row_group_size=10, write_page_checksum=True, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[content.find(b"row 25")] ^= 1
    path.write_bytes(content)
    source = ParquetDataSource(path)
    assert source[5]["text"] == "row 5"
    with pytest.raises(DamagedFile, match=r"checked\.parquet: row group 2 cannot be read"):
        source[25]
    it = iter(ParquetIterDataset(path))
    assert len([next(it) for _ in range(20)]) == 20
    with pytest.raises(DamagedFile, match="row group 2 cannot be read"):
        next(it)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_changed_byte_of_a_parquet_file_is_harmless_or_told_with_the_file(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("flip") / "x.parquet"
    pq.write_table(table(), path, row_group_size=10, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)

    def in_order():
        return list(ParquetIterDataset(path))

    def anywhere():
        source = ParquetDataSource(path)
        return [source[index] for index in range(len(source))]

    for read in (in_order, anywhere):
        try:
            read()
        except DamagedFile as error:
            assert "x.parquet" in str(error)


def test_a_text_of_a_parquet_file_that_is_none(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": [f"row {n}" for n in range(20)]}), path, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[content.find(b"row 13") + 1] ^= 0x80
    path.write_bytes(content)
    for read in (ParquetDataSource(path).__getitem__, lambda _: list(ParquetIterDataset(path))):
        with pytest.raises(DamagedFile, match=r"x\.parquet: row group 0 cannot be read: .*UTF8"):
            read(13)


def test_a_changed_offset_of_an_arrow_file_is_refused_and_does_not_end_the_process(tmp_path):
    texts = [f"text {number}" * 5 for number in range(40)]
    feather.write_feather(
        pa.table({"id": range(40), "text": texts}), str(tmp_path / "x.arrow"), compression="uncompressed"
    )
    script = """
        import os
        import numpy as np
        from bushel import DamagedFile
        from bushel.sources import ArrowDataSource

        os.chdir(os.path.dirname(__file__))
        content = open("x.arrow", "rb").read()
        sizes = [len(f"text {number}" * 5) for number in range(40)]
        place = content.find(np.cumsum([0, *sizes]).astype("<i4").tobytes())
        assert place > 0
        for byte in range(4 * 41):
            changed = bytearray(content)
            changed[place + byte] ^= 0x40
            open("y.arrow", "wb").write(changed)
            source = ArrowDataSource("y.arrow")
            try:
                list(source)
            except DamagedFile as error:
                assert "y.arrow: record batch 0 cannot be read" in str(error), error
            assert ArrowDataSource("y.arrow", columns=["id"])[7] == {"id": 7}
        print("alive")
    """
    code, said, errors = run_script(tmp_path, script)
    assert (code, said.strip()) == (0, "alive"), errors


def test_a_state_of_other_files_is_refused(files):
    it = iter(ParquetIterDataset(files / "part-0.parquet"))
    for row_group, row in ((9, 0), (0, 11), (-1, 0)):
        with pytest.raises(bushel.StateMismatch, match=f"at row {row} of row group {row_group}, but"):
            it.set_state({**it.get_state(), "row_group": row_group, "index_within_row_group": row})
    several = iter(ParquetIterDataset(str(files / "part-*.parquet")))
    state = several.get_state()
    with pytest.raises(bushel.StateMismatch, match="of an interleave of 2 streams at a time; this one has 3"):
        several.set_state(
            state
            | {key: state[key][:2] for key in ("exhausted", "iterators_in_use_indices", "iterators_in_use_states")}
        )


class Grid(pa.ExtensionType):
    """As `datasets` registers them for arrays of two dimensions."""

    def __init__(self):
        super().__init__(pa.list_(pa.list_(pa.float32())), "bushel.tests.grid")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()

    def __arrow_ext_class__(self):
        return GridArray


class GridArray(pa.ExtensionArray):
    def to_numpy(self, zero_copy_only=True):
        return np.zeros((len(self), 1))  # which is not what the file holds


def test_extension_types_that_a_package_registers_change_no_value(tmp_path):
    storage = pa.array([[[1.0, 2.0], [3.0]], None, [[4.0]]], Grid().storage_type)
    grids = pa.ExtensionArray.from_storage(Grid(), storage)
    rows = pa.StructArray.from_arrays([grids, pa.array([1, 2, 3])], ["grid", "number"])
    tables = {"with": pa.table({"grid": grids, "row": rows}), "without": pa.table({"grid": storage})}
    tables["without"] = tables["without"].append_column(
        "row", pa.StructArray.from_arrays([storage, pa.array([1, 2, 3])], ["grid", "number"])
    )
    found = {}
    pa.register_extension_type(Grid())
    try:
        for name, one in tables.items():
            pq.write_table(one, tmp_path / f"{name}.parquet")
            feather.write_feather(one, str(tmp_path / f"{name}.arrow"), compression="uncompressed")
            files = ParquetDataSource(tmp_path / f"{name}.parquet"), ArrowDataSource(tmp_path / f"{name}.arrow")
            found[name] = [list(MapDataset.source(source)) for source in (*files, one)]
            found[name].append(list(ParquetIterDataset(str(tmp_path / f"{name}.parquet"))))
        assert pq.read_table(tmp_path / "with.parquet").schema.field("grid").type == Grid()
    finally:
        pa.unregister_extension_type("bushel.tests.grid")
    assert repr(found["with"]) == repr(found["without"])
    assert found["with"][0][0]["grid"][0].tolist() == [1.0, 2.0]
    alone = list(MapDataset.source(ParquetDataSource(tmp_path / "with.parquet")))  # nothing is registered now
    assert repr(alone) == repr(found["with"][0])
