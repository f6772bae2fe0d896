"""The six works that peers.py gives to every library, and the check of what a library made of them.

Imports none of the libraries, so that each of them runs in a process without the others.
"""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

Record = dict[str, Any]
Batch = dict[str, np.ndarray]

ROW = 2_048  # tokens
PHOTO, CROP = 256, 224
HISTORY, HORIZON = 2, 50

WHAT = {
    "w1a": "28 x 28 images, shuffled, in batches of 128; a batch is normalised",
    "w1b": "the same; each image is normalised before it is batched",
    "w2": "small dicts in order, five maps, a filter, batches of 256",
    "w3": "JPEG images, shuffled, decoded, cropped and flipped, batches of 64; two workers or threads",
    "w4": "token sequences, shuffled, concatenated and split into rows of 2,048, batches of 16",
    "w5": "windows of trajectories, shuffled: two frames of 64 x 64, 50 actions; batches of 64",
}


class Work:
    """Records by index, functions of one record, and a function of a batch; each is the same for every library."""

    name: str
    batch: int
    records: Sequence[Record]
    maps: tuple[Callable[[Record], Record], ...] = ()

    def __len__(self) -> int:
        return len(self.records)

    def make(self, index: int) -> Record:
        """The record with this index after all maps."""
        record = self.records[index]
        for function in self.maps:
            record = function(record)
        return record

    def keep(self, record: Record) -> bool:
        """The filter."""
        return True

    def finish(self, batch: Batch) -> Batch:
        """The function of one batch."""
        return batch

    def count_expected(self) -> Counter[int]:
        """How often each record has to come in one epoch, by its digest."""
        made = (self.make(index) for index in range(len(self)))
        batches = (self.finish(stack([record])) for record in made if self.keep(record))
        return Counter(digest for batch in batches for digest in compute_digests(batch))

    def check(self, batches: Iterable[Batch]) -> int:
        """Raise ValueError unless the batches of one epoch hold the right records; return how many there are."""
        found = Counter(digest for batch in batches for digest in compute_digests(batch))
        expected = self.count_expected()
        wrong, missing = found - expected, expected - found
        if wrong or missing:
            raise ValueError(f"{wrong.total()} records are wrong, and {missing.total()} are missing.")
        return found.total()


class Images(Work):
    """W1: small images and labels, as rows of arrays."""

    batch = 128

    def __init__(self, name: str, count: int):
        rng = np.random.default_rng(0)
        self.name = name
        self.arrays = {
            "image": rng.integers(0, 256, (count, 28, 28), dtype=np.uint8),
            "label": rng.integers(0, 10, count, dtype=np.int64),
        }
        self.records = Rows(self.arrays)
        if name == "w1b":
            self.maps = (normalise,)

    def finish(self, batch: Batch) -> Batch:
        return normalise(batch) if self.name == "w1a" else batch


class Rows(Sequence[Record]):
    """The rows of arrays, one by one."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays["label"])

    def __getitem__(self, index: Any) -> Any:
        return {"image": self.arrays["image"][index], "label": self.arrays["label"][index]}


class Small(Work):
    """W2: dicts of four numbers."""

    name, batch = "w2", 256

    def __init__(self, count: int):
        self.records = [{"a": i, "b": i * 0.5, "c": i % 7, "d": float(i % 3)} for i in range(count)]
        self.maps = (raise_a, double_b, lower_c, raise_d, double_a)

    def keep(self, record: Record) -> bool:
        return record["c"] != 3


class Photos(Work):
    """W3: JPEG images in memory. Where an image is cut follows from its index, so that all libraries cut alike."""

    name, batch = "w3", 64

    def __init__(self, count: int):
        import simplejpeg

        pictures = [simplejpeg.encode_jpeg(draw_picture(seed), quality=90) for seed in range(64)]
        self.records = [{"jpeg": pictures[index % 64], "index": index} for index in range(count)]
        self.maps = (decode,)

    def check(self, batches: Iterable[Batch]) -> int:
        """Each image is right. Streams of this work are endless, so none can be missing."""
        expected, found = self.count_expected(), 0
        for batch in batches:
            for digest in compute_digests(batch):
                found += 1
                if digest not in expected:
                    raise ValueError("An image is wrong.")
        return found


class Tokens(Work):
    """W4: token sequences of mean length 300."""

    name, batch = "w4", 16

    def __init__(self, count: int):
        rng = np.random.default_rng(0)
        lengths = np.clip(rng.lognormal(np.log(300) - 0.405, 0.9, count).astype(int), 1, ROW)
        self.flat = rng.integers(1, 50_000, int(lengths.sum()), dtype=np.int32)
        self.lengths = lengths
        self.records = [{"tokens": part} for part in np.split(self.flat, np.cumsum(lengths)[:-1])]

    def check(self, batches: Iterable[Batch]) -> int:
        """Each token comes as often as it has to, in rows that are full (a library may pack in parts: 5 % more)."""
        found, rows = np.zeros(50_000, np.int64), 0
        for batch in batches:
            real = batch["tokens_segment_ids"] > 0
            found += np.bincount(batch["tokens"][real], minlength=50_000)
            rows += len(real)
            starts = np.diff(batch["tokens_segment_ids"], axis=1, prepend=0) > 0
            if (batch["tokens_positions"][starts] != 0).any():
                raise ValueError("A position does not begin at zero.")
        if (found != np.bincount(self.flat, minlength=50_000)).any() or rows > 1.05 * len(self.flat) / ROW + 1:
            raise ValueError(f"Tokens are missing, or {rows} rows are too many.")
        return rows


class Trajectories(Work):
    """W5: windows of episodes, computed for one frame at a time by a class of the user's own."""

    name, batch = "w5", 64

    def __init__(self, episodes: int):
        rng = np.random.default_rng(0)
        self.lengths = rng.integers(50, 150, episodes)
        frames = int(self.lengths.sum())
        self.arrays = {
            "image": rng.integers(0, 256, (frames, 64, 64, 3), dtype=np.uint8),
            "state": rng.random((frames, 8), dtype=np.float32),
            "action": rng.random((frames, 7), dtype=np.float32),
        }
        self.records = Windows(self.arrays, self.lengths)


class Windows(Sequence[Record]):
    """The window of each frame. The history repeats the first frame of an episode, and actions its last one."""

    def __init__(self, arrays: dict[str, np.ndarray], lengths: np.ndarray):
        self.arrays, self.ends, self.lengths = arrays, np.cumsum(lengths), lengths

    def __len__(self) -> int:
        return int(self.ends[-1])

    def find_rows(self, index: int) -> tuple[list[int], int]:
        """The frames of the history, and how many actions are left in the episode."""
        episode = int(np.searchsorted(self.ends, index, side="right"))
        end = int(self.ends[episode])
        return [max(index - 1, end - int(self.lengths[episode])), index], min(HORIZON, end - index)

    def __getitem__(self, index: Any) -> Any:
        seen, chunk = self.find_rows(index)
        actions = self.arrays["action"][index : index + chunk]
        return make_window(self.arrays["image"][seen], self.arrays["state"][seen], actions)


def make_window(images: np.ndarray, states: np.ndarray, actions: np.ndarray) -> Record:
    """A window of these frames; actions that are missing at the end of an episode repeat its last one."""
    chunk = len(actions)
    if chunk < HORIZON:
        actions = np.concatenate([actions, np.repeat(actions[-1:], HORIZON - chunk, axis=0)])
    return {"action": actions, "image": images, "real": chunk, "state": states}


def make_work(name: str, quick: bool = False) -> Work:
    """One of the works by its name; with fewer records to see whether all works."""
    if name in ("w1a", "w1b"):
        return Images(name, 2_000 if quick else 30_000)
    if name == "w2":
        return Small(2_000 if quick else 30_000)
    if name == "w3":
        return Photos(512 if quick else 2_048)
    if name == "w4":
        return Tokens(500 if quick else 10_000)
    return Trajectories(10 if quick else 60)


# What users write: functions of records and batches, and what a library leaves to them.


def normalise(x: Record) -> Record:
    return {"image": x["image"].astype(np.float32) / 255, "label": x["label"]}


def raise_a(x: Record) -> Record:
    return {**x, "a": x["a"] + 1}


def double_b(x: Record) -> Record:
    return {**x, "b": x["b"] * 2}


def lower_c(x: Record) -> Record:
    return {**x, "c": x["c"] - 1}


def raise_d(x: Record) -> Record:
    return {**x, "d": x["d"] + 1.0}


def double_a(x: Record) -> Record:
    return {**x, "a": x["a"] * 2}


def decode(x: Record) -> Record:
    import simplejpeg

    rng = np.random.default_rng(x["index"])
    image = simplejpeg.decode_jpeg(x["jpeg"])
    top, left = rng.integers(0, PHOTO - CROP, 2)
    image = image[top : top + CROP, left : left + CROP]
    return {"image": image[:, ::-1] if rng.random() < 0.5 else image}


def draw_picture(seed: int) -> np.ndarray:
    """Smooth shapes and a little noise: compresses as photographs do."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:PHOTO, 0:PHOTO] / PHOTO
    waves = [np.sin(2 * np.pi * (a * x + b * y + c)) for a, b, c in rng.uniform(0, 6, (3, 3))]
    return np.clip(127 + 90 * np.stack(waves, axis=-1) + rng.normal(0, 12, (PHOTO, PHOTO, 3)), 0, 255).astype(np.uint8)


def stack(records: Sequence[Record]) -> Batch:
    """A batch of records, for libraries that leave this to the user. `np.stack` is slow for plain numbers."""
    batch = {}
    for name, first in records[0].items():
        if name == "__key__":  # which webdataset adds
            continue
        column = [record[name] for record in records]
        batch[name] = np.stack(column) if isinstance(first, np.ndarray) else np.array(column)
    return batch


def group(records: Iterable[Record], size: int) -> Iterator[list[Record]]:
    """The records of each batch of a stream, for libraries that leave this to the user."""
    rest = iter(records)
    while gathered := list(itertools.islice(rest, size)):
        yield gathered


def pack(records: Iterable[Record]) -> Iterator[Record]:
    """Rows of `ROW` tokens, for libraries without packing: sequences end to end, cut at the ends of rows."""
    row, filled, segment = make_row(), 0, 0
    for record in records:
        tokens = record["tokens"]
        start = 0
        while start < len(tokens):
            size = min(len(tokens) - start, ROW - filled)
            end, segment = filled + size, segment + 1
            row["tokens"][filled:end] = tokens[start : start + size]
            row["tokens_segment_ids"][filled:end] = segment
            row["tokens_positions"][filled:end] = POSITIONS[:size]
            start, filled = start + size, end
            if filled == ROW:
                yield row
                row, filled, segment = make_row(), 0, 0
    if filled:
        yield row


POSITIONS = np.arange(ROW, dtype=np.int32)


def make_row() -> Record:
    return {name: np.zeros(ROW, np.int32) for name in ("tokens", "tokens_segment_ids", "tokens_positions")}


def compute_digests(batch: Batch) -> list[int]:
    """A number for each row of a batch, from the names, types and bytes of its values."""
    names = sorted(batch)
    columns = [np.ascontiguousarray(batch[name]) for name in names]
    kinds = "".join(f"{name} {column.dtype} {column.shape[1:]};" for name, column in zip(names, columns))
    start = zlib.crc32(kinds.encode())
    digests = []
    for row in range(len(columns[0])):
        digest = start
        for column in columns:
            digest = zlib.crc32(column[row].tobytes(), digest)
        digests.append(digest)
    return digests
