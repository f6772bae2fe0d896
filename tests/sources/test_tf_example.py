"""`tf.train.Example` without TensorFlow: compared with protocol buffers built from the published definition."""

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel._src.sources.protocol_buffers import locate_example, slice_record
from bushel.sources import decode_example, encode_example


def example_class():
    """The message class of tf.train.Example, from its definition (example.proto and feature.proto)."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")

    def message(name, *fields):
        entry = file.message_type.add(name=name)
        for number, (field, kind, label, type_name, packed) in enumerate(fields, start=1):
            made = entry.field.add(name=field, number=number, type=kind, label=label)
            if type_name:
                made.type_name = f".tensorflow.{type_name}"
            if packed is not None:
                made.options.packed = packed
        return entry

    one, many = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    message("BytesList", ("value", kinds.TYPE_BYTES, many, "", None))
    message("FloatList", ("value", kinds.TYPE_FLOAT, many, "", PACKED[0]))
    message("Int64List", ("value", kinds.TYPE_INT64, many, "", PACKED[0]))
    feature = message(
        "Feature",
        ("bytes_list", kinds.TYPE_MESSAGE, one, "BytesList", None),
        ("float_list", kinds.TYPE_MESSAGE, one, "FloatList", None),
        ("int64_list", kinds.TYPE_MESSAGE, one, "Int64List", None),
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = message("Features", ("feature", kinds.TYPE_MESSAGE, many, "Features.FeatureEntry", None))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=kinds.TYPE_MESSAGE, label=one, type_name=".tensorflow.Feature")
    message("Example", ("features", kinds.TYPE_MESSAGE, one, "Features", None))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


PACKED = [True]
Example = example_class()
PACKED[0] = False
UnpackedExample = example_class()

values = st.one_of(
    st.lists(st.binary(max_size=20), max_size=5).map(lambda v: ("bytes_list", v)),
    st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(lambda v: ("float_list", v)),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5).map(lambda v: ("int64_list", v)),
)
features = st.dictionaries(st.text(max_size=8), values, max_size=5)


@pytest.mark.parametrize("kind", [Example, UnpackedExample])
@settings(max_examples=100, deadline=None)
@given(content=features)
def test_decoding_gives_what_protocol_buffers_hold(kind, content):
    message = kind()
    for name, (field, items) in content.items():
        getattr(message.features.feature[name], field).value.extend(items)
        getattr(message.features.feature[name], field).SetInParent()
    found = decode_example(message.SerializeToString())
    assert found.keys() == content.keys()
    for name, (field, items) in content.items():
        if field == "bytes_list":
            assert found[name] == items
        else:
            expected = np.array(items, np.float32 if field == "float_list" else np.int64)
            assert found[name].dtype == expected.dtype
            assert found[name].tolist() == expected.tolist()


@settings(max_examples=100, deadline=None)
@given(content=features)
def test_what_is_encoded_is_read_by_protocol_buffers(content):
    plain = {
        name: items if field == "bytes_list" else np.array(items, np.float32 if field == "float_list" else np.int64)
        for name, (field, items) in content.items()
        if items
    }
    message = Example.FromString(encode_example(plain))
    assert set(message.features.feature) == set(plain)
    for name, (field, items) in content.items():
        if items:
            assert list(getattr(message.features.feature[name], field).value) == items


@settings(max_examples=100, deadline=None)
@given(record=st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(record):
    try:
        assert isinstance(decode_example(record), dict)
    except ValueError as error:
        assert f"This record of {len(record)} bytes is not a tf.train.Example" in str(error)


@settings(deadline=None)
@given(content=st.dictionaries(st.text(max_size=5), st.lists(st.binary(max_size=300), max_size=4), max_size=4))
def test_byte_strings_are_found_without_being_read(content):
    record = encode_example(
        {name: np.array([*values, None], object)[:-1] for name, values in content.items()} | {"1": [7]}
    )
    found = locate_example(record)
    for name, values in content.items():
        if name != "1":
            assert slice_record(record, found[name].places) == values and found[name].numbers is None
    assert found["1"].numbers.tolist() == [7]
    spans = sorted((feature.low, feature.high) for feature in found.values())
    entries = b"".join(record[low:high] for low, high in spans)
    assert record.endswith(entries) and all(low == end for (low, _), (_, end) in zip(spans[1:], spans))


def test_a_sequence_example_is_refused_and_not_taken_for_an_empty_one():
    lists = b"\x0a\x05\x0a\x01x\x12\x00"  # feature_list {key: "x", value {}}
    context = encode_example({"y": 1})
    for record in (b"\x12" + bytes([len(lists)]) + lists, context + b"\x12" + bytes([len(lists)]) + lists):
        with pytest.raises(
            ValueError, match=r"is not a tf\.train\.Example \(it has a field 2, as in a tf\.train\.SequenceExample"
        ):
            decode_example(record)
    with pytest.raises(ValueError, match="it has a field 7, which an Example does not have"):
        decode_example(context + b"\x38\x01")


def test_what_no_feature_can_hold_is_refused():
    with pytest.raises(TypeError, match="Feature 'x' must be numbers, bytes or strings"):
        encode_example({"x": None})


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (np.uint64(2**63), "holds 9223372036854775808, which does not fit into int64"),
        ([1, 2**63], "holds 9223372036854775808"),
        (1e300, r"holds 1e\+300, which does not fit into float32"),
        (np.array([0.5, -1e39]), r"holds -1e\+39"),
    ],
)
def test_numbers_that_would_become_others_are_refused(value, sentence):
    with pytest.raises(ValueError, match=f"Feature 'x' {sentence}"):
        encode_example({"x": value})


def test_what_stays_what_it_is():
    for value in ([np.inf, -np.inf], np.uint64([2**63 - 1]), np.float64([3e38])):
        assert decode_example(encode_example({"x": value}))["x"].tolist() == np.asarray(value, dtype_of(value)).tolist()


def dtype_of(value):
    return np.float32 if np.asarray(value).dtype.kind == "f" else np.int64


@pytest.mark.parametrize(
    "value",
    [
        [b"ab", b"c"],
        [bytearray(b"ab"), memoryview(b"c")],
        np.array(["ab", "c"]),
        np.array([b"ab", b"c"]),
        np.array([["ab"], ["c"]], object),
        ["ab", bytearray(b"c")],
    ],
)
def test_bytes_and_texts_of_any_kind(value):
    assert decode_example(encode_example({"x": value, "y": bytearray(b"d")})) == {"x": [b"ab", b"c"], "y": [b"d"]}
