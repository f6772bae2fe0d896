"""Checksums: HighwayHash of ArrayRecord, CRC32C of TFRecord, and files of checksums beside files without any.

HighwayHash and CRC32C are computed by a C package if it is installed, otherwise with NumPy. HighwayHash of one message
is a chain of steps of which each needs the one before. With NumPy, a step for a hundred messages costs as much as for
one, so many messages are hashed side by side.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checked_files, redact
from bushel._src.base.errors import BushelWarning, DamagedFile
from bushel._src.base.late_imports import import_package, install_command
from bushel._src.base.public import public
from bushel._src.sources import file_access, folders
from bushel._src.sources.local_files import File
from bushel._src.sources.paths import Options, Path

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
    """Return one 64-bit number per message.

    >>> [hex(value) for value in compute_hashes([b"", b"abc"])]
    ['0x72c3b1e9c0139fe1', '0x672fe946c18d0ed9']
    """
    hash_all = find_c_function()
    return hash_with_numpy(messages).tolist() if hash_all is None else hash_all(messages)


@functools.cache
def find_c_function() -> Callable[[Sequence[Message]], list[int]] | None:
    """Return a function that hashes messages with the package `highwayhash-cffi`; None without the package."""
    for load in (_load_inner_function, _load_public_function):
        with contextlib.suppress(ImportError, AttributeError):
            hash_all = load()
            if hash_all([b"abc"]) == hash_with_numpy([b"abc"]).tolist():  # another package may have the same name
                return hash_all
    return None


def _load_inner_function() -> Callable[[Sequence[Message]], list[int]]:
    """Return the C function itself, which is no public part of the package.

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
    """Return the hashes of messages that are sorted from long to short."""
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
        """Hash one packet of 32 bytes for each of the first `count` messages."""
        v0, v1, mul0, mul1 = self.v0[:count], self.v1[:count], self.mul0[:count], self.mul1[:count]
        v1 += mul0
        v1 += packet[:count]
        mul0 ^= (v1 & _LOW) * (v0 >> _HALF)
        v0 += mul1
        mul1 ^= (v0 & _LOW) * (v1 >> _HALF)
        v0 += _zip_lanes(v1)
        v1 += _zip_lanes(v0)

    def hash_tails(self, tails: np.ndarray, rest: np.ndarray) -> None:
        """Hash the last bytes of messages whose length is not a multiple of 32."""
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
    """Mix the bytes of lanes 0 and 1, and of 2 and 3. Lanes are little-endian, as on every machine we support."""
    return lanes.view(np.uint8).reshape(-1, 16).take(_ZIPPER, axis=1).view("<u8").reshape(lanes.shape)


def _rotate_halves(lanes: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Rotate each 32-bit half of each lane left by `by` bits (1 to 31)."""
    back = _HALF - by
    halves = [lanes & _LOW, lanes >> _HALF]
    low, high = (((half << by) | (half >> back)) & _LOW for half in halves)
    return low | (high << _HALF)


def _make_last_packets(tails: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Return packets of the last `rest` bytes: first the whole words, then the remaining bytes at the algorithm's
    places.
    """
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


Checksum = Callable[[Any], int]
"""A function from bytes to their CRC32C. TFRecord files hold it `mask`."""

_FEW_BYTES = 500  # for fewer bytes, a loop over bytes is faster
_warned = False


def get_fast_checksum() -> Checksum:
    """Return a fast checksum function. If no package has one, the error contains the `pip install` command."""
    found = _find_fast()
    if found is None:
        return import_package("crc32c", "tfrecord", "Checksums of TFRecord files (or verify=False)").crc32c
    return found


def get_checksum() -> Checksum:
    """Return a fast checksum if a package computes one, otherwise the slow one: TFRecord files must have checksums."""
    return _find_fast() or compute_slowly


def decide_verify(verify: bool | None) -> bool:
    """Return whether to compare records with their checksums.

    None: yes if a package is installed, else no, with a warning.
    """
    global _warned
    if verify is not None:
        if verify:
            get_fast_checksum()
        return bool(verify)
    if _find_fast() is not None:
        return True
    if not _warned:
        _warned = True
        warnings.warn(
            "TFRecord files are read without comparing their checksums, so damage may go unnoticed: no package that "
            f"computes CRC32C is installed. Install one: {install_command('tfrecord')}. "
            "With verify=False there is no warning.",
            BushelWarning,
            stacklevel=3,
        )
    return False


def _find_fast() -> Checksum | None:
    """Return the checksum function of an installed package, or None."""
    try:
        return importlib.import_module("crc32c").crc32c
    except ImportError:
        pass
    try:
        google = importlib.import_module("google_crc32c")
    except ImportError:
        return None
    if google.implementation != "c":  # its Python code is as slow as that below
        return None
    value = google.value
    return lambda data: value(data if isinstance(data, bytes) else bytes(data))  # it accepts no other buffers


def compute_slowly(data: bytes | bytearray | memoryview) -> int:
    """CRC32C with NumPy: about 0.1 ms for a record of 1 KB, and 50 MB/s for large ones.

    >>> hex(compute_slowly(b"123456789"))
    '0xe3069283'
    """
    content = bytes(data)
    if len(content) < _FEW_BYTES:
        crc = 0xFFFFFFFF
        for byte in content:
            crc = _TABLE[crc & 255 ^ byte] ^ crc >> 8
        return crc ^ 0xFFFFFFFF
    # The checksum begins with all bits set. This is the same as beginning with 0 and inverting the first 4 bytes. With
    # a beginning of 0, zero bytes in front change nothing, so the data can be padded there.
    first = int.from_bytes(content[:4], "little") ^ 0xFFFFFFFF
    words = np.frombuffer(bytes(-len(content) % 4) + first.to_bytes(4, "little") + content[4:], "<u4")
    level = 0
    while len(words) > 1:  # two neighbours are combined into one
        if len(words) % 2:
            words = np.concatenate((np.zeros(1, np.uint32), words))
        words = _append_zeros(words[::2], level) ^ words[1::2]
        level += 1
    return int(_append_zeros(words, 0)[0]) ^ 0xFFFFFFFF


def _append_zeros(states: np.ndarray, level: int) -> np.ndarray:
    """Return the states of the checksum after 4 * 2**level more zero bytes."""
    first, second, third, fourth = _make_zero_tables(level)
    return first[states & 255] ^ second[states >> 8 & 255] ^ third[states >> 16 & 255] ^ fourth[states >> 24]


@functools.cache
def _make_zero_tables(level: int) -> list[np.ndarray]:
    """Return tables of what each byte of a state (the lowest first) adds to the state after 4 * 2**level zero bytes."""
    if level == 0:
        return _CHANGES[4:]  # as if the state were the next 4 bytes
    bytes_of_states = [np.arange(256, dtype=np.uint32) << np.uint32(shift) for shift in (0, 8, 16, 24)]
    return [_append_zeros(_append_zeros(states, level - 1), level - 1) for states in bytes_of_states]


def mask(crc: int) -> int:
    """Return a checksum in the form that TFRecord files hold."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def compute_length_checksums(lengths: np.ndarray) -> np.ndarray:
    """Return the masked checksums of many lengths: the checksum of 0, changed by each byte. Needs no package."""
    crc = np.full(len(lengths), _NO_LENGTH, np.uint32)
    rest = lengths.astype(np.uint64)
    for changes in _CHANGES:
        if not rest.any():
            break
        crc ^= changes[(rest & np.uint64(255)).astype(np.intp)]
        rest >>= np.uint64(8)
    return (crc >> 15 | crc << 17) + np.uint32(0xA282EAD8)


def _make_tables() -> tuple[int, list[np.ndarray]]:
    """Return the CRC32C of eight zero bytes, and for each of these bytes a table of what its 256 values change."""
    last = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        last = last >> 1 ^ (last & 1) * np.uint32(0x82F63B78)
    changes, zeros = [last], np.array([0xFFFFFFFF], np.uint32)
    for _ in range(8):
        changes.append(last[changes[-1] & 255] ^ changes[-1] >> 8)  # one more byte after it
        zeros = last[zeros & 255] ^ zeros >> 8
    return zeros.item() ^ 0xFFFFFFFF, changes[7::-1]


_NO_LENGTH, _CHANGES = _make_tables()
_TABLE: list[int] = _CHANGES[-1].tolist()  # of the last byte: the usual table of the algorithm


_CHUNK = 1 << 20
_ENDING = ".checksums"


@public("bushel.sources")
def write_checksums(paths: Path | Iterable[Path], *, storage_options: Options | None = None) -> list[str]:
    """Write a file of checksums (one per MiB) beside each file, local or in a store. Return the new paths.

    >>> import os, tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp(), "x.npy")
    >>> _ = path.write_bytes(b"abc")
    >>> [os.path.basename(name) for name in write_checksums(path)]
    ['x.npy.checksums']
    >>> check_checksums(path)  # doctest: +ELLIPSIS
    >>> _ = path.write_bytes(b"abd")
    >>> check_checksums(path)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bushel.DamagedFile: ... is damaged: bytes 0 to 3 do not match their checksum.
    """
    written = []
    for path in _find_files(paths, storage_options):
        file = file_access.open_file(path, storage_options)
        found = {"size": file.size, "piece": _CHUNK, "crc32": _compute_checksums(file)}
        folder, name = folders.open_parent(path + _ENDING, storage_options)
        folder.write(name, checked_files.json_bytes(found))
        written.append(path + _ENDING)
    return written


@public("bushel.sources")
def check_checksums(paths: Path | Iterable[Path], *, storage_options: Options | None = None) -> None:
    """Read whole files and compares them with the checksums that `write_checksums` has written beside them."""
    for path in _find_files(paths, storage_options):
        beside = file_access.open_file(path + _ENDING, storage_options)
        known = _read_checksums(beside)
        file = file_access.open_file(path, storage_options)
        if file.size != known["size"]:
            raise DamagedFile(
                f"{file.name} has {file.size} bytes; it had {known['size']} when its checksums were written."
            )
        for number, (was, now) in enumerate(zip(known["crc32"], _compute_checksums(file), strict=True)):
            if was != now:
                low = number * _CHUNK
                high = min(low + _CHUNK, file.size)
                raise DamagedFile(f"{file.name} is damaged: bytes {low} to {high} do not match their checksum.")


def _find_files(paths: Path | Iterable[Path], options: Options | None) -> list[str]:
    """Return the files that paths name, without files of checksums, which a pattern may match too."""
    found = [path for path in file_access.find_files(paths, options) if not path.endswith(_ENDING)]
    if not found:
        raise ValueError(
            f"{redact.clean(str(paths))}: these are files of checksums. Name the files that they belong to."
        )
    return found


def _read_checksums(beside: File) -> dict[str, Any]:
    """Return the content of a file of checksums. Files of older versions have no checksum of their own."""
    try:
        known = checked_files.parse_json(beside.read(0, beside.size), beside.name, needs_checksum=False)
        size, sums = known["size"], known["crc32"]
        if type(size) is not int or not isinstance(sums, list) or not all(type(one) is int for one in sums):
            raise ValueError("its entries are not numbers")
        if known["piece"] != _CHUNK or len(sums) != -(-size // _CHUNK):
            raise ValueError("its sizes contradict each other")
    except (ValueError, KeyError) as error:
        raise DamagedFile(f"{beside.name} has no complete checksums: {error!r}. Write them again.") from error
    return known


def _compute_checksums(file: File) -> list[int]:
    return [zlib.crc32(file.read(low, min(_CHUNK, file.size - low))) for low in range(0, file.size, _CHUNK)]
