"""HighwayHash, the checksum in ArrayRecord files: computed by a C package if it is installed, otherwise with NumPy.

The hash of one message is a chain of steps of which each needs the one before. With NumPy, a step for a hundred
messages costs as much as for one, so many messages are hashed side by side.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Sequence

import numpy as np

_KEY = np.array([0x2F696C6567656952, 0x0A7364726F636572] * 2, np.uint64)  # "Riegeli/", "records\n", twice
_MUL0 = np.array([0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3], np.uint64)
_MUL1 = np.array([0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377], np.uint64)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_PACKET = 32
_AT_ONCE_BYTES = 32 << 20

# Two lanes are merged by a shuffle of their 16 bytes: byte n of the result is byte _ZIPPER[n] of the pair.
_ZIPPER = np.array([3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7])


Message = bytes | memoryview


def compute_hashes(messages: Sequence[Message]) -> list[int]:
    """One 64-bit number per message.

    >>> [hex(value) for value in compute_hashes([b"", b"abc"])]
    ['0x72c3b1e9c0139fe1', '0x672fe946c18d0ed9']
    """
    hash_all = find_c_function()
    return hash_with_numpy(messages).tolist() if hash_all is None else hash_all(messages)


@functools.cache
def find_c_function() -> Callable[[Sequence[Message]], list[int]] | None:
    """A function that hashes messages with the package `highwayhash-cffi`; None without the package."""
    for load in (_load_inner_function, _load_public_function):
        with contextlib.suppress(ImportError, AttributeError):
            hash_all = load()
            if hash_all([b"abc"]) == hash_with_numpy([b"abc"]).tolist():  # another package may have the same name
                return hash_all
    return None


def _load_inner_function() -> Callable[[Sequence[Message]], list[int]]:
    """The C function itself, which is no public part of the package.

    The public function copies each message, makes the key again for each call, and takes four times as long for a short
    message.
    """
    package = importlib.import_module("highwayhash._highwayhash")
    as_pointer, function = package.ffi.from_buffer, package.lib.HighwayHash64
    key = package.ffi.new("uint64_t[4]", _KEY.tolist())

    def hash_all(messages: Sequence[Message]) -> list[int]:
        # `bytes` are passed as they are: for 1 KB, this takes 0.15 us less than a pointer to them.
        return [
            function(message if type(message) is bytes else as_pointer("uint8_t[]", message), len(message), key)
            for message in messages
        ]

    return hash_all


def _load_public_function() -> Callable[[Sequence[Message]], list[int]]:
    hash_one, key = importlib.import_module("highwayhash").highwayhash_64, _KEY.tobytes()
    return lambda messages: [int.from_bytes(hash_one(key, bytes(message)), sys.byteorder) for message in messages]


def hash_with_numpy(messages: Sequence[Message]) -> np.ndarray:
    """As `compute_hashes`, computed with NumPy, as an array of uint64."""
    lengths = np.array([len(message) for message in messages], np.int64)
    found = np.zeros(len(messages), np.uint64)
    order = np.argsort(
        -lengths, kind="stable"
    )  # the longest message first; messages of equal length next to each other
    low = 0
    while low < len(order):
        width = max(1, int(lengths[order[low]]))
        high = low + max(1, _AT_ONCE_BYTES // width)
        part = order[low:high]
        found[part] = _hash_sorted([messages[place] for place in part], lengths[part])
        low = high
    return found


def _hash_sorted(messages: list[Message], lengths: np.ndarray) -> np.ndarray:
    """The hashes of messages that are sorted from long to short."""
    count, whole, rest = len(messages), lengths // _PACKET, lengths % _PACKET
    steps = int(whole[0])
    padded = np.zeros((count, steps + 1, _PACKET), np.uint8)
    for row, message in zip(padded.reshape(count, -1), messages):
        row[: len(message)] = np.frombuffer(message, np.uint8)
    tails = padded[np.arange(count), whole]
    packets = np.ascontiguousarray(padded.view("<u8").transpose(1, 0, 2))
    state = _State(count)
    alive = np.searchsorted(
        -whole, -np.arange(1, steps + 1), side="right"
    )  # how many messages have a packet at each step
    for step in range(steps):
        state.update(packets[step], int(alive[step]))
    state.hash_tails(tails, rest.astype(np.uint64))
    return state.digest()


class _State:
    """The state of the algorithm for many messages: four vectors of four lanes each."""

    def __init__(self, count: int):
        self.v0 = np.tile(_MUL0 ^ _KEY, (count, 1))
        self.v1 = np.tile(_MUL1 ^ _swap_halves(_KEY), (count, 1))
        self.mul0 = np.tile(_MUL0, (count, 1))
        self.mul1 = np.tile(_MUL1, (count, 1))

    def update(self, packet: np.ndarray, count: int) -> None:
        """Hashes one packet of 32 bytes for each of the first `count` messages."""
        v0, v1, mul0, mul1 = self.v0[:count], self.v1[:count], self.mul0[:count], self.mul1[:count]
        v1 += mul0
        v1 += packet[:count]
        mul0 ^= (v1 & _LOW) * (v0 >> _HALF)
        v0 += mul1
        mul1 ^= (v0 & _LOW) * (v1 >> _HALF)
        v0 += _zip_lanes(v1)
        v1 += _zip_lanes(v0)

    def hash_tails(self, tails: np.ndarray, rest: np.ndarray) -> None:
        """Hashes the last bytes of messages whose length is not a multiple of 32."""
        some = np.flatnonzero(rest)
        if not len(some):
            return
        rest = rest[some, None]
        part = _State(0)
        part.v0 = self.v0[some] + ((rest << _HALF) + rest)
        part.v1 = _rotate_halves(self.v1[some], rest)
        part.mul0, part.mul1 = self.mul0[some], self.mul1[some]
        part.update(_make_last_packets(tails[some], rest[:, 0].astype(np.int64)).view("<u8"), len(some))
        self.v0[some], self.v1[some], self.mul0[some], self.mul1[some] = part.v0, part.v1, part.mul0, part.mul1

    def digest(self) -> np.ndarray:
        for _ in range(4):
            self.update(_swap_halves(self.v0[:, [2, 3, 0, 1]]), len(self.v0))
        return self.v0[:, 0] + self.v1[:, 0] + self.mul0[:, 0] + self.mul1[:, 0]


def _swap_halves(lanes: np.ndarray) -> np.ndarray:
    return (lanes >> _HALF) | (lanes << _HALF)


def _zip_lanes(lanes: np.ndarray) -> np.ndarray:
    """Mixes the bytes of lanes 0 and 1, and of 2 and 3. Lanes are little-endian, as on every machine we support."""
    return lanes.view(np.uint8).reshape(-1, 16).take(_ZIPPER, axis=1).view("<u8").reshape(lanes.shape)


def _rotate_halves(lanes: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Rotates each 32-bit half of each lane left by `by` bits (1 to 31)."""
    back = _HALF - by
    halves = [lanes & _LOW, lanes >> _HALF]
    low, high = (((half << by) | (half >> back)) & _LOW for half in halves)
    return low | (high << _HALF)


def _make_last_packets(tails: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Packets of the last `rest` bytes: first the whole words, then the remaining bytes at the algorithm's places."""
    packets = tails.copy()
    rows = np.arange(len(rest))
    words, odd = rest & ~3, rest & 3
    packets[np.arange(_PACKET) >= words[:, None]] = 0
    long = rest >= 16
    for place in range(4):
        packets[rows[long], 28 + place] = tails[rows[long], rest[long] - 4 + place]
    short = ~long & (odd > 0)
    first, odd = words[short], odd[short]
    for place, byte in enumerate((first, first + (odd >> 1), first + odd - 1)):
        packets[rows[short], 16 + place] = tails[rows[short], byte]
    return packets
