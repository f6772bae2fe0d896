"""What goes over the wire comes out the same: objects with their arrays, and messages in any portions."""

from __future__ import annotations

import collections
import os
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.numpy_versions import STRING_DTYPES
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bushel._src.base.memory import ALIGNMENT
from bushel._src.engine.pool.wire import IN_BAND_BYTES, pack, unpack
from bushel._src.engine.processes import channel
from bushel._src.engine.processes.channel import Channel, Closed
from bushel._src.engine.shared_memory import Slab, Slot
from bushel.testing import same

SLOT_BYTES = 1 << 18


# ---------------------------------------------------------------------------------------------------------------------
# Objects


Named = collections.namedtuple("Named", "one two")

DTYPES = [
    *"?bhilqBHILQefdFDgG",
    ">i4",
    ">f8",
    "S7",
    "U5",
    "V11",
    "M8[ns]",
    "m8[us]",
    "O",
    [("a", "i4"), ("b", "f8", (3,)), ("c", "U3")],
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    *STRING_DTYPES,
    "V0",
    [],
    [("a", "i4", (0,))],
]

SHAPES = [(), (0,), (1,), (7,), (0, 5), (3, 0, 2), (40, 30), (1200,), (2, 3, 4, 50), (20_000,)]


def filled(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """An array of any dtype with numbers that tell the places apart."""
    numbers = np.asarray(np.arange(int(np.prod(shape))).reshape(shape) % 100)
    kind = np.dtype(dtype)
    if not kind.itemsize:
        return np.zeros(shape, kind)
    if kind.kind == "V" and kind.names:
        made = np.zeros(shape, kind)
        made["a"], made["b"], made["c"] = numbers, numbers[..., None], numbers.astype("U3")
        return made
    if kind.kind == "V" and not kind.names and kind.type is np.void:
        return numbers.astype("S11").view(kind)
    if kind.kind in "Mm":
        return numbers.view(kind)
    return numbers.astype(kind)


def layouts(made: np.ndarray) -> dict[str, np.ndarray]:
    """The same values in other layouts of memory."""
    frozen = np.array(made)
    frozen.flags.writeable = False
    return {
        "C": made,
        "Fortran": np.asfortranarray(made),
        "transposed": made.T,
        "every other": np.repeat(made, 2, axis=0)[::2] if made.ndim else made,
        "backwards": made[::-1] if made.ndim else made,
        "broadcast": np.broadcast_to(made, (2, *made.shape)),
        "read-only": frozen,
        "in a larger one": np.concatenate([made, made])[len(made) :] if made.ndim else made,
    }


def fresh_slot(size: int = SLOT_BYTES) -> tuple[Slot, memoryview]:
    """A slot as the worker sees it, and as the consumer does."""
    arena = Slab(size, 1)
    lease = arena.lease(arena.grant())
    arena.close()
    return Slot(lease[:size]), lease


def through(value: Any, room: str) -> Any:
    """`value` packed on one side and unpacked on the other, as messages travel."""
    slot, lease = fresh_slot(64 if room == "too little" else SLOT_BYTES) if room != "none" else (None, None)
    packed = pickle.loads(pickle.dumps(pack(value, slot)))
    if room != "plenty":
        assert not packed.extents
    return unpack(packed, lease)


rooms = pytest.mark.parametrize("room", ["plenty", "too little", "none"])


def assert_equal(found: Any, expected: np.ndarray) -> None:
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if expected.dtype.kind in "OT":
        assert found.tolist() == expected.tolist()
    else:
        assert found.tobytes() == expected.tobytes()


@rooms
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_of_every_kind_come_out_the_same(dtype, room):
    for shape in SHAPES:
        for layout, value in layouts(filled(dtype, shape)).items():
            found = through(value, room)
            assert_equal(found, value)
            if layout != "read-only" and layout != "broadcast":
                assert found.flags.writeable, (shape, layout)


@rooms
def test_the_order_of_memory_is_kept(room):
    for value in (np.ones((50, 60)), np.asfortranarray(np.ones((50, 60))), np.ones((50, 60)).T):
        found = through(value, room)
        assert found.flags.f_contiguous == value.flags.f_contiguous
        assert found.flags.c_contiguous == value.flags.c_contiguous


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.builds(filled, st.sampled_from(["f4", "i8", "U5", "?", "M8[ns]", ml_dtypes.bfloat16]), st.sampled_from(SHAPES)),
    st.builds(lambda x: x.T, st.builds(filled, st.just("f8"), st.sampled_from(SHAPES))),
    hnp.arrays(st.sampled_from(["i4", "f8", "c8"]), hnp.array_shapes(max_dims=3, max_side=4), fill=st.nothing()),
    st.builds(np.float32, st.integers(-5, 5)),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
        st.builds(Named, inner, inner),
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(tree=trees, size=st.sampled_from([0, 64, 5000, 50_000, 1 << 20]))
@example(tree=[np.zeros(1000), np.ones(1000), np.zeros(100_000)], size=50_000)
def test_trees_come_out_the_same_whatever_the_room(tree, size):
    slot, lease = fresh_slot(max(size, 1)) if size else (None, None)
    packed = pack(tree, slot)
    found = unpack(packed, lease)
    assert same(found, tree)
    if packed.extents:
        end = 0
        for offset, length in packed.extents:  # one after the other, aligned, within the slot
            assert offset % ALIGNMENT == 0 and offset >= end and length >= IN_BAND_BYTES
            end = offset + length
        assert end <= max(size, 1)


@settings(max_examples=50, deadline=None)
@given(tree=trees)
def test_what_is_needed_fits(tree):
    """`slot_bytes` is told truly: a slot of that size holds it all."""
    needed = pack(tree, None).slot_bytes
    slot, lease = fresh_slot(max(needed, 1))
    packed = pack(tree, slot)
    assert packed.extents is not None and not packed.copies
    assert same(unpack(packed, lease), tree)


def test_all_go_into_the_slot_or_none():
    slot, lease = fresh_slot(20_000)
    value = [np.arange(1000), np.arange(1000) + 1, np.arange(1000) + 2]
    packed = pack(value, slot)
    assert packed.extents is None and [len(part) for part in packed.copies] == [8000] * 3
    assert same(unpack(packed, lease), value)


def test_small_arrays_do_not_hold_the_slot():
    slot, lease = fresh_slot()
    small, large = np.zeros(IN_BAND_BYTES - 1, np.uint8), np.zeros(IN_BAND_BYTES, np.uint8)
    assert pack({"label": small}, slot).extents == []
    packed = pack({"label": small, "image": large}, slot)
    assert packed.extents is not None and [size for _, size in packed.extents] == [IN_BAND_BYTES]
    found = unpack(packed, lease)
    assert np.shares_memory(found["image"], np.frombuffer(lease, np.uint8))
    assert not np.shares_memory(found["label"], np.frombuffer(lease, np.uint8))


def test_what_was_made_in_the_slot_stays_there():
    slot, lease = fresh_slot()
    offset = slot.allocate(8000)
    assert offset is not None
    made = np.frombuffer(slot.view(offset, 8000), np.int64)
    made[:] = np.arange(1000)
    other = np.arange(5000)
    packed = pack([other, made, made[100:700]], slot)
    assert packed.extents is not None
    assert packed.extents[1] == (offset, 8000) and packed.extents[2] == (offset + 800, 4800)
    assert packed.extents[0][0] >= offset + 8000
    found = unpack(packed, lease)
    assert same(found, [other, made, made[100:700]])
    assert found[1].ctypes.data == made.ctypes.data  # not moved
    assert 48_000 <= packed.slot_bytes < 48_000 + 2 * ALIGNMENT  # nor counted twice


def test_arrays_beside_the_slot_are_aligned():
    for found in unpack(pack([np.zeros(1000), np.zeros((7, 333))], None), None):
        assert found.ctypes.data % ALIGNMENT == 0 and found.flags.writeable


def test_one_array_seen_twice_is_one_array_again():
    value = np.arange(2000)
    for room in ("plenty", "none"):
        one, two = through([value, value], room)
        assert one is two


def test_subclasses_of_arrays_travel():
    masked = np.ma.masked_array(np.arange(3000), mask=np.arange(3000) % 2 == 0)
    record = filled([("a", "i4"), ("b", "f8", (3,)), ("c", "U3")], (500,)).view(np.recarray)
    for room in ("plenty", "too little", "none"):
        found = through([masked, record], room)
        assert isinstance(found[0], np.ma.MaskedArray) and (found[0].mask == masked.mask).all()
        assert (found[0].data == masked.data).all()
        assert isinstance(found[1], np.recarray) and (found[1].a == record.a).all()


@pytest.mark.parametrize("room", ["plenty", "none"])
def test_memoryviews_travel_as_ones_that_can_be_written(room):
    for view in (
        memoryview(b"abc"),
        memoryview(b""),
        memoryview(np.arange(6000.0).reshape(2, 3000)),
        memoryview(np.arange(6)[::2]),
    ):
        (found,) = through([view], room)
        assert (type(found), found.format, found.shape) == (memoryview, view.format, view.shape)
        assert found.tolist() == view.tolist() and not found.readonly


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("not me")


def test_what_cannot_be_pickled_is_an_error_and_leaves_the_slot_usable():
    slot, lease = fresh_slot()
    with pytest.raises(TypeError, match="not me"):
        pack([np.zeros(5000), Unpicklable()], slot)
    slot.reset()
    assert same(unpack(pack(np.arange(5000), slot), lease), np.arange(5000))


def test_functions_and_classes_of_nowhere_travel():
    class Local:
        x = 5

    function, kind = through([lambda y: y + 1, Local], "plenty")
    assert function(1) == 2 and kind is Local


# ---------------------------------------------------------------------------------------------------------------------
# Messages


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def framed(message: Any) -> bytes:
    """A message as it lies on the wire."""
    one, other = socket.socketpair()
    with one, other:
        thread = threading.Thread(target=Channel(one).send, args=(message,))
        thread.start()
        header = other.recv(channel._HEADER.size, socket.MSG_WAITALL)
        size, _ = channel._HEADER.unpack(header)
        body = other.recv(size, socket.MSG_WAITALL)
        thread.join()
    return header + body


messages = st.lists(
    st.one_of(
        st.tuples(st.just("word"), st.integers(0, 9)),
        st.tuples(st.just("large"), st.binary(max_size=2000)),
        st.none(),
    ),
    max_size=8,
)


@given(sent=messages, cuts=st.lists(st.integers(1, 300), max_size=30))
def test_messages_arrive_whole_in_any_portions(sent, cuts):
    raw = b"".join(map(framed, sent))
    one, other = socket.socketpair()
    with one, other:
        channel = Channel(other)
        assert channel.receive_nowait() == []
        found, start = [], 0
        for size in [*cuts, len(raw)]:
            one.sendall(raw[start : start + size])
            start += size
            found += channel.receive_nowait()
            assert found == sent[: len(found)]
        assert found == sent
        one.close()
        with pytest.raises(Closed):
            channel.receive_nowait()


@given(sent=messages, data=st.data())
def test_posted_messages_keep_their_place(sent, data):
    one, other = map(Channel, socket.socketpair())
    with one.socket, other.socket:
        for message in sent:
            data.draw(st.sampled_from([one.send_later, one.send]))(message)
        one.flush()
        assert other.receive_nowait() == sent


def test_what_was_posted_goes_out_with_the_next_message_or_before_waiting(ends):
    one, other = map(Channel, ends)
    one.send_later("answer")
    other.send("next task")
    assert one.receive() == ("next task", [])
    assert other.receive_nowait() == []
    one.send("begun")
    assert other.receive_nowait() == ["answer", "begun"]
    one.send_later("answer")
    waits = threading.Thread(target=one.receive)
    waits.start()
    assert other.receive() == ("answer", [])
    other.send("bye")
    waits.join(100)
    assert not waits.is_alive()


@settings(max_examples=50)
@given(sent=messages.filter(bool), data=st.data())
def test_the_end_of_the_other_side_comes_after_its_last_whole_message(sent, data):
    raw = b"".join(map(framed, sent))
    cut = data.draw(st.integers(0, len(raw)))
    edges = np.cumsum([0, *(len(framed(message)) for message in sent)])
    whole = int(np.searchsorted(edges, cut, side="right")) - 1
    one, other = socket.socketpair()
    with other:
        channel = Channel(other)
        one.sendall(raw[:cut])
        one.close()
        found: list[Any] = []
        with pytest.raises(Closed):
            while True:
                found += channel.receive_nowait()
        assert found == sent[:whole]
        with pytest.raises(Closed):  # and again
            channel.receive_nowait()


@pytest.mark.parametrize("cut", [0, 1, 8, 9, 12])
def test_a_reader_that_waits_hears_of_the_end(ends, cut):
    one, other = ends
    one.sendall(framed(("word", 1)) + framed(("word", 2))[:cut])
    one.close()
    channel = Channel(other)
    assert channel.receive() == (("word", 1), [])
    with pytest.raises(Closed):
        channel.receive()


def test_sending_to_nobody_is_closed(ends):
    one, other = ends
    other.close()
    with pytest.raises(Closed):
        for _ in range(100):
            Channel(one).send(("word", b"x" * 10_000))
    with pytest.raises(Closed):
        Channel(one).send(("word",), (0,))


def test_a_closed_channel_is_closed(ends):
    channel = Channel(ends[0])
    channel.close()
    for call in (channel.receive_nowait, channel.receive, lambda: channel.send(("word",))):
        with pytest.raises(Closed):
            call()


def test_messages_larger_than_any_buffer_arrive(ends):
    one, other = ends
    message = ("large", os.urandom(20 << 20))
    sender = threading.Thread(target=Channel(one).send, args=(message,), daemon=True)
    sender.start()
    assert Channel(other).receive() == (message, [])
    sender.join(100)
    sender = threading.Thread(target=Channel(one).send, args=(message,), daemon=True)
    sender.start()
    channel, found = Channel(other), []
    while not found:
        found = channel.receive_nowait()
    assert found == [message]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([10, 5_000, 300_000, 2_000_000]), min_size=1, max_size=8),
    counts=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    data=st.data(),
)
def test_what_is_offered_never_waits_and_arrives_whole(sizes, counts, data):
    one, other = socket.socketpair()
    with one, other:
        sender, receiver = Channel(one), Channel(other)
        for number, (size, count) in enumerate(zip(sizes, counts)):
            files = [os.memfd_create(f"{number}-{place}") for place in range(count)]
            for place, file in enumerate(files):
                os.write(file, f"{number}-{place}".encode())
            sender.send_nowait(("offered", number, b"x" * size), tuple(files))  # nobody reads
            for file in files:
                os.close(file)
        assert sender.has_unsent() or sum(sizes) < 400_000
        done = threading.Event()

        def push() -> None:
            while sender.has_unsent():
                sender.send_rest()
            done.set()

        threading.Thread(target=push, daemon=True).start()
        for number, (size, count) in enumerate(zip(sizes, counts)):
            message, files = receiver.receive()
            assert message == ("offered", number, b"x" * size)
            assert [os.pread(file, 100, 0) for file in files] == [
                f"{number}-{place}".encode() for place in range(count)
            ]
            for file in files:
                os.close(file)
        assert done.wait(100)


def test_what_was_offered_and_not_sent_leaves_nothing_open(ends):
    before = len(os.listdir("/proc/self/fd"))
    channel = Channel(ends[0])
    for _ in range(20):
        channel.send_nowait(("large", b"x" * 100_000), (0, 1))
    assert channel.has_unsent() and len(os.listdir("/proc/self/fd")) > before
    ends[1].close()
    with pytest.raises(Closed):
        channel.send_rest()
    with pytest.raises(Closed):
        channel.send_nowait("more")
    channel.close()
    assert len(os.listdir("/proc/self/fd")) <= before


@settings(deadline=None)
@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_descriptors_arrive_with_their_message(counts):
    one, other = socket.socketpair()
    with one, other:
        sender, receiver = Channel(one), Channel(other)
        opened = []
        for number, count in enumerate(counts):
            files = [os.memfd_create(f"{number}-{place}") for place in range(count)]
            for place, file in enumerate(files):
                os.write(file, f"{number}-{place}".encode())
            sender.send(("files", number), tuple(files))
            opened += files
        for file in opened:
            os.close(file)
        for number, count in enumerate(counts):
            message, files = receiver.receive()
            assert message == ("files", number)
            assert [os.pread(file, 100, 0) for file in files] == [
                f"{number}-{place}".encode() for place in range(count)
            ]
            for file in files:
                os.close(file)


def test_the_header_is_as_it_was():
    """Both sides are of one version; still, a change should be meant."""
    message = ("word", 1)
    body = pickle.dumps(message, protocol=5)
    assert framed(message) == struct.pack("<QB", len(body), 0) + body
