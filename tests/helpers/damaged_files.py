"""Small files of every format, the ways to damage them, and what may come of it. Run by programs/read_damaged.py."""

import dataclasses
import gzip
import io
import json
import os
import random
import re
import shutil
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bushel._src.sources.parquet import ParquetRecords
from bushel.experimental import ParquetIterDataset, TFRecordIterDataset, WebDatasetIterDataset
from bushel.sources import (
    ArrayRecordDataSource,
    ArrowDataSource,
    BagzDataSource,
    FixedRecords,
    HDF5DataSource,
    LanceDataSource,
    LineDataSource,
    ParquetDataSource,
    TFRecordDataSource,
    ZarrDataSource,
    check_checksums,
    decode_audio,
    decode_example,
    decode_image,
    encode_example,
    load_arrays,
    write_checksums,
)
from helpers.record_formats import written

RECORDS = [random.Random(number).randbytes(number * 37 % 300) for number in range(8)]
EQUAL_SIZES = [random.Random(number).randbytes(24) for number in range(8)]
ARRAYS = {"a": np.arange(60, dtype=np.int32).reshape(20, 3), "b": np.linspace(0, 1, 20)}

SILENT = ("same", "whole", "values", "schema", "records")
NEVER, WHOLE, VALUES, SCHEMA, RECORDS_TOO = SILENT
"""What damage may change without an error, each with those before it: nothing; which whole records there are, and their
order; values; names, types and shapes; the number of records."""


# Damages.

_NUMBERS = [0, -1, 1, 2**31, 2**63, 2**31 - 1, 2**63 - 1, 255, 65536]
_TEXTS = [b"0", b"-1", b"1", b"2147483648", b"9223372036854775808", b"-3584", b"-1536", b"99999999999"]
_DIGITS = re.compile(rb"\d+")


def damage(content: bytes, rng: random.Random) -> bytes:
    """Content with one damage, drawn from `rng`."""
    if not content:
        return rng.randbytes(rng.choice([1, 8, 100]))
    return rng.choice(_DAMAGES)(content, rng)


def _place(content: bytes, rng: random.Random) -> int:
    """Half of the places are near the beginning or the end: headers and indices are there."""
    near = min(len(content), 512)
    return rng.choice(
        [rng.randrange(len(content)), rng.randrange(len(content)), rng.randrange(near), -1 - rng.randrange(near)]
    ) % len(content)


def _replaced(content: bytes, place: int, part: bytes) -> bytes:
    return content[:place] + part + content[place + len(part) :]


def _flip(content: bytes, rng: random.Random) -> bytes:
    place = _place(content, rng)
    return _replaced(content, place, bytes([content[place] ^ 1 << rng.randrange(8)]))


def _flip_several(content: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randrange(2, 6)):
        content = _flip(content, rng)
    return content


def _zeros(content: bytes, rng: random.Random) -> bytes:
    place = _place(content, rng)
    return _replaced(content, place, bytes(min(rng.choice([1, 4, 8, 64, 512, 4096]), len(content) - place)))


def _zeros_at_the_end(content: bytes, rng: random.Random) -> bytes:
    count = min(rng.choice([4, 8, 16, 18, 22, 64, 512]), len(content))
    return content[:-count] + bytes(count)


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: _place(content, rng)]


def _insert(content: bytes, rng: random.Random) -> bytes:
    place, count = _place(content, rng), rng.choice([1, 2, 8, 512])
    return content[:place] + rng.choice([bytes(count), rng.randbytes(count)]) + content[place:]


def _remove(content: bytes, rng: random.Random) -> bytes:
    place = _place(content, rng)
    return content[:place] + content[place + rng.choice([1, 2, 8, 64, 512]) :]


def _swap(content: bytes, rng: random.Random) -> bytes:
    size = max(1, min(rng.choice([1, 4, 8, 16, 64, 512]), len(content) // 2))
    one, other = (rng.randrange(len(content) - size + 1) // size * size for _ in range(2))
    swapped = _replaced(content, one, content[other : other + size])
    return _replaced(swapped, other, content[one : one + size])


def _double_header(content: bytes, rng: random.Random) -> bytes:
    count = rng.choice([8, 12, 40, 64, 128, 512])
    return content[:count] + content


def _number(content: bytes, rng: random.Random) -> bytes:
    width = rng.choice([1, 2, 4, 8])
    place = _place(content, rng)
    place -= place % rng.choice([1, 1, 2, 4, width])
    value = rng.choice([*_NUMBERS, len(content), len(content) + 1]) % 256**width
    return _replaced(content, place, value.to_bytes(width, rng.choice(["little", "big"])))[: len(content)]


def _digits(content: bytes, rng: random.Random) -> bytes:
    found = list(_DIGITS.finditer(content))
    if not found:
        return _number(content, rng)
    one, text = rng.choice(found), rng.choice(_TEXTS)
    if rng.random() < 0.5:  # in the room that there was
        text = text.rjust(one.end() - one.start(), rng.choice([b" ", b"0"]))[: one.end() - one.start()]
    return content[: one.start()] + text + content[one.end() :]


_DAMAGES: list[Callable[[bytes, random.Random], bytes]] = [
    _flip,
    _flip,
    _flip_several,
    _zeros,
    _zeros_at_the_end,
    _cut,
    _insert,
    _remove,
    _swap,
    _double_header,
    _number,
    _number,
    _number,
    _digits,
]


# Formats.


@dataclasses.dataclass(frozen=True)
class Format:
    """How a file of a format is written, damaged and read."""

    write: Callable[[Path], Path]
    """Writes into a folder, and returns the file, or the folder that is the data set."""
    read: Callable[[Path], Any]
    silent: str
    """What may be other than it was without an error."""
    change: Callable[[bytes, random.Random], bytes] = damage
    """Damages the content of a file."""
    unnamed: bool = False
    """Whether the error does not name a file: where bytes are decoded."""
    only: str = ""
    """Of a folder, only files with this in their path are damaged."""
    may_crash: bool = False
    """Whether the library behind it may end the process, or loop: documented."""
    alike: Callable[[Any, Any], bool] | None = None
    """Whether records are the same as far as the format's checksum can tell."""


def rows(source: Any) -> list[Any]:
    """All records of a source: together, and each alone; these must agree, or fail."""
    length = len(source)
    if length > 10_000:
        raise AssertionError(f"{length} records")
    alone = [source[number] for number in range(length)]
    if hasattr(source, "__getitems__") and length:
        found = source.__getitems__(np.arange(length)[::-1].copy())
        together = (found.rows() if hasattr(found, "rows") else list(found))[::-1]
        if len(together) != length or not all(map(equal, alone, together)):
            raise AssertionError("records read together are not those read alone")
    return alone


def stream(dataset: Any) -> list[Any]:
    found = []
    for record in dataset:
        found.append(record)
        if len(found) > 10_000:
            raise AssertionError("a stream without an end")
    return found


def equal(one: Any, other: Any) -> bool:
    """Whether records are the same: values, types, shapes, and bits of numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, (np.ndarray, np.generic)) and isinstance(other, (np.ndarray, np.generic)):
        a, b = np.asarray(one), np.asarray(other)
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return equal(a.tolist(), b.tolist()) if a.dtype.hasobject else a.tobytes() == b.tobytes()
    return type(one) is type(other) and (one == other or one != one)


def _records(name: str, records: list[bytes] = RECORDS) -> Callable[[Path], Path]:
    return lambda folder: written(folder, name, records)


def _bag_with_limits(folder: Path) -> Path:
    path = folder / "records.bag"
    path.write_bytes(b"".join(RECORDS))
    ends = np.cumsum([len(record) for record in RECORDS])
    (folder / "limits.records.bag").write_bytes(ends.astype("<u8").tobytes())
    return folder


def _packed(pack: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = written(folder, "tfrecord", RECORDS)
        path.write_bytes(pack(path.read_bytes()))
        return path

    return write


def _inside_gzip(content: bytes, rng: random.Random) -> bytes:
    return gzip.compress(damage(gzip.decompress(content), rng), 1)


def _lines(folder: Path) -> Path:
    path = folder / "x.jsonl"
    path.write_bytes(b"".join(json.dumps({"x": number}).encode() + b"\n" for number in range(20)))
    return path


def _table(count: int = 20) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "maybe": pa.array([None if number % 5 == 0 else number for number in range(count)], pa.int32()),
            "text": [f"row {number % 7}" for number in range(count)],
            "list": pa.array([[number] * (number % 4) for number in range(count)], pa.list_(pa.int16())),
        }
    )


def _parquet(**options: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        pq.write_table(_table(), folder / "x.parquet", row_group_size=7, **options)
        return folder / "x.parquet"

    return write


def _parquet_records(path: Path) -> list[bytes]:
    records = ParquetRecords(str(path), None, False)
    return [record for block in records.read_blocks(0, records.count()) for record in block]


def _arrow(new: Callable[..., Any], compression: str | None = None) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "x.arrow"
        table = _table().append_column("word", pa.array(["a", "b"] * 10).dictionary_encode())
        with new(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_table(table, max_chunksize=7)
        return path

    return write


def _npy(folder: Path) -> Path:
    np.save(folder / "x.npy", ARRAYS["a"])
    return folder / "x.npy"


def _npz(save: Callable[..., None]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        save(folder / "x.npz", **ARRAYS)
        return folder / "x.npz"

    return write


def _inside_npz(content: bytes, rng: random.Random) -> bytes:
    """Damages one member, and writes the archive again with checksums that fit."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        chosen = rng.choice(archive.namelist())
        for name in archive.namelist():
            data = archive.read(name)
            new.writestr(name, damage(data, rng) if name == chosen else data)
    return out.getvalue()


def _safetensors(folder: Path) -> Path:
    from safetensors.numpy import save_file

    save_file(ARRAYS, folder / "x.safetensors")
    return folder / "x.safetensors"


def _arrays(path: Path) -> Any:
    found = load_arrays(path)
    return np.array(found) if isinstance(found, np.ndarray) else {name: np.array(found[name]) for name in sorted(found)}


def _hdf5(libver: str | None = None, **options: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        with h5py.File(folder / "x.h5", "w", libver=libver) as file:
            for name, array in ARRAYS.items():
                chunks = {"chunks": (20, *array.shape[1:])} if options else {}  # one chunk
                file.create_dataset(name, data=array, **options, **chunks)
        return folder / "x.h5"

    return write


def _fit_fletcher32(found: list[Any], whole: list[Any]) -> bool:
    """Whether arrays of one chunk each are those that were written, as far as Fletcher's checksum can tell.

    For it, 16 bits that are all set are as good as none, and the checksum of zeros is zero.
    """
    if len(found) != len(whole) or any(list(record) != list(ARRAYS) for record in found):
        return False
    for name in ARRAYS:
        words = [np.frombuffer(np.array([record[name] for record in rows]).tobytes(), "<u2") for rows in (found, whole)]
        read, written = (np.where(part == 0xFFFF, 0, part) for part in words)
        if read.any() and not np.array_equal(read, written):
            return False
    return True


def _zarr(version: int, **options: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        import zarr

        group = zarr.open_group(folder / "x.zarr", mode="w", zarr_format=version)
        for name, array in ARRAYS.items():
            made = group.create_array(
                name, shape=array.shape, dtype=array.dtype, chunks=(7, *array.shape[1:]), **options
            )
            made[:] = array
        return folder / "x.zarr"

    return write


def _zarr_checked(folder: Path) -> Path:
    import zarr.codecs

    return _zarr(3, compressors=[zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()])(folder)


def _lance(folder: Path) -> Path:
    import lance

    lance.write_dataset(_table(), folder / "x.lance")
    return folder / "x.lance"


def _tar(form: int) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        with tarfile.open(folder / "x.tar", "w", format=form) as tar:
            for number in range(8):
                key = f"{number:03d}" + "n" * (120 if number % 3 == 0 else 0)
                for ending, content in (("txt", RECORDS[number]), ("cls", b"%d" % number)):
                    member = tarfile.TarInfo(f"{key}.{ending}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        return folder / "x.tar"

    return write


def _tar_with_right_checksums(content: bytes, rng: random.Random) -> bytes:
    """Damage to headers and extended headers, with a checksum that fits, so that it is not seen by that."""
    out = bytearray(damage(content, rng))
    for place in range(0, len(out) - 511, 512):
        header = out[place : place + 512]
        if header[257:262] == b"ustar" or any(header[100:148]):
            total = sum(header) - sum(header[148:156]) + 8 * ord(" ")
            out[place + 148 : place + 156] = b"%06o\0 " % total
    return bytes(out)


def _example(folder: Path) -> Path:
    path = folder / "example"
    path.write_bytes(encode_example({"x": [1, 2, 300], "y": [0.5, 1.5], "name": [b"abc", b"d"], "none": []}))
    return path


def _image(kind: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        from PIL import Image

        path = folder / f"x.{kind}"
        Image.fromarray(np.arange(12 * 10 * 3, dtype=np.uint8).reshape(12, 10, 3)).save(path)
        return path

    return write


def _sound(kind: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        import soundfile

        path = folder / f"x.{kind}"
        soundfile.write(path, np.sin(np.arange(300) / 9).reshape(-1, 2), 8000)
        return path

    return write


def _checksums(folder: Path) -> Path:
    path = folder / "x.bin"
    path.write_bytes(bytes(range(256)))
    write_checksums(path)
    return folder


def _tfrecord_read(**options: Any) -> Callable[[Path], Any]:
    return lambda path: rows(TFRecordDataSource(path, **options))


TABLE: dict[str, Format] = {
    "array_record plain": Format(_records("array_record plain"), lambda p: rows(ArrayRecordDataSource(p)), VALUES),
    "array_record plain verified": Format(
        _records("array_record plain"), lambda p: rows(ArrayRecordDataSource(p, verify=True)), NEVER
    ),
    "array_record groups": Format(_records("array_record groups"), lambda p: rows(ArrayRecordDataSource(p)), VALUES),
    "array_record groups verified": Format(
        _records("array_record plain groups"), lambda p: rows(ArrayRecordDataSource(p, verify=True)), NEVER
    ),
    "array_record brotli": Format(_records("array_record brotli"), lambda p: rows(ArrayRecordDataSource(p)), VALUES),
    "array_record snappy": Format(_records("array_record snappy"), lambda p: rows(ArrayRecordDataSource(p)), VALUES),
    "array_record fixed": Format(
        _records("array_record plain", EQUAL_SIZES),
        lambda p: rows(FixedRecords(ArrayRecordDataSource(p), dtype=np.int32, shape=(6,))),
        VALUES,
    ),
    "tfrecord": Format(_records("tfrecord"), _tfrecord_read(), WHOLE),
    "tfrecord unverified": Format(_records("tfrecord"), _tfrecord_read(verify=False), RECORDS_TOO),
    "tfrecord fixed": Format(
        _records("tfrecord", EQUAL_SIZES),
        lambda p: rows(FixedRecords(TFRecordDataSource(p), dtype=np.int32, shape=(6,))),
        WHOLE,
    ),
    "tfrecord in order": Format(_records("tfrecord"), lambda p: stream(TFRecordIterDataset(str(p))), WHOLE),
    "tfrecord in order unverified": Format(
        _records("tfrecord"), lambda p: stream(TFRecordIterDataset(str(p), verify=False)), RECORDS_TOO
    ),
    "tfrecord gzip": Format(_packed(gzip.compress), lambda p: stream(TFRecordIterDataset(str(p))), WHOLE),
    "tfrecord zlib": Format(_packed(zlib.compress), lambda p: stream(TFRecordIterDataset(str(p))), WHOLE),
    "tfrecord inside gzip": Format(
        _packed(gzip.compress), lambda p: stream(TFRecordIterDataset(str(p))), WHOLE, _inside_gzip
    ),
    "bag": Format(_records("bag"), lambda p: rows(BagzDataSource(p)), RECORDS_TOO),
    "bagz": Format(_records("bagz"), lambda p: rows(BagzDataSource(p)), RECORDS_TOO),
    "bag separate limits": Format(
        _bag_with_limits, lambda p: rows(BagzDataSource(p / "records.bag", separate_limits=True)), RECORDS_TOO
    ),
    "bag fixed": Format(
        _records("bag", EQUAL_SIZES),
        lambda p: rows(FixedRecords(BagzDataSource(p), dtype=np.int32, shape=(6,))),
        RECORDS_TOO,
    ),
    "lines": Format(_lines, lambda p: rows(LineDataSource(p)), RECORDS_TOO),
    "parquet": Format(
        _parquet(write_page_checksum=True, compression="zstd"), lambda p: rows(ParquetDataSource(p)), SCHEMA
    ),
    "parquet plain": Format(_parquet(compression="none"), lambda p: rows(ParquetDataSource(p)), SCHEMA),
    "parquet in order": Format(
        _parquet(compression="snappy", use_dictionary=False), lambda p: stream(ParquetIterDataset(str(p))), SCHEMA
    ),
    "parquet records": Format(_parquet(compression="none"), _parquet_records, SCHEMA),
    "arrow file": Format(_arrow(pa.ipc.new_file), lambda p: rows(ArrowDataSource(p)), SCHEMA),
    "arrow stream": Format(_arrow(pa.ipc.new_stream), lambda p: rows(ArrowDataSource(p)), SCHEMA),
    "arrow lz4": Format(_arrow(pa.ipc.new_file, "lz4"), lambda p: rows(ArrowDataSource(p)), SCHEMA),
    "npy": Format(_npy, _arrays, SCHEMA),
    "npz": Format(_npz(np.savez), _arrays, SCHEMA),
    "npz compressed": Format(_npz(np.savez_compressed), _arrays, NEVER),
    "npz inside": Format(_npz(np.savez_compressed), _arrays, SCHEMA, _inside_npz),
    "safetensors": Format(_safetensors, _arrays, SCHEMA),
    "hdf5": Format(_hdf5(), lambda p: rows(HDF5DataSource(p)), RECORDS_TOO, may_crash=True),
    "hdf5 gzip": Format(_hdf5(compression="gzip"), lambda p: rows(HDF5DataSource(p)), RECORDS_TOO, may_crash=True),
    "hdf5 fletcher32": Format(_hdf5(fletcher32=True), lambda p: rows(HDF5DataSource(p)), RECORDS_TOO, may_crash=True),
    "hdf5 latest fletcher32": Format(
        _hdf5("latest", fletcher32=True),
        lambda p: rows(HDF5DataSource(p)),
        NEVER,
        alike=_fit_fletcher32,
    ),
    "zarr 3": Format(_zarr(3), lambda p: rows(ZarrDataSource(p)), RECORDS_TOO),
    "zarr 2": Format(_zarr(2), lambda p: rows(ZarrDataSource(p)), RECORDS_TOO),
    "zarr crc32c": Format(_zarr_checked, lambda p: rows(ZarrDataSource(p)), NEVER, only="/c/"),
    "lance": Format(_lance, lambda p: rows(LanceDataSource(p)), RECORDS_TOO),
    "tar pax": Format(_tar(tarfile.PAX_FORMAT), lambda p: stream(WebDatasetIterDataset(str(p))), RECORDS_TOO),
    "tar gnu": Format(
        _tar(tarfile.GNU_FORMAT),
        lambda p: stream(WebDatasetIterDataset(str(p))),
        RECORDS_TOO,
        _tar_with_right_checksums,
    ),
    "tar pax checksums": Format(
        _tar(tarfile.PAX_FORMAT),
        lambda p: stream(WebDatasetIterDataset(str(p))),
        RECORDS_TOO,
        _tar_with_right_checksums,
    ),
    "checksums": Format(_checksums, lambda p: check_checksums(p / "x.bin"), NEVER, only=".checksums"),
    "example": Format(_example, lambda p: decode_example(p.read_bytes()), RECORDS_TOO, unnamed=True),
    "image png": Format(_image("png"), lambda p: decode_image(p.read_bytes()), RECORDS_TOO, unnamed=True),
    "image jpg": Format(_image("jpg"), lambda p: decode_image(p.read_bytes()), RECORDS_TOO, unnamed=True),
    "sound wav": Format(_sound("wav"), lambda p: decode_audio(p.read_bytes()), RECORDS_TOO, unnamed=True),
    "sound flac": Format(_sound("flac"), lambda p: decode_audio(p.read_bytes()), RECORDS_TOO, unnamed=True),
}


def family(name: str) -> str:
    """The format that an entry of the table is a variant of."""
    return name.partition(" ")[0]


def share(name: str, count: int) -> int:
    """How many damages an entry takes if its format takes `count` in all."""
    variants = sum(family(name) == family(other) for other in TABLE)
    return -(-count // variants)


def _note(folder: Path) -> Path:
    (folder / "x.txt").write_bytes(b"some text")
    return folder / "x.txt"


FAULTY = {
    "crashes": Format(_note, lambda p: p.read_bytes() == b"some text" or os.abort(), NEVER),
    "hangs": Format(_note, lambda p: p.read_bytes() == b"some text" or time.sleep(600), NEVER),
    "eats memory": Format(_note, lambda p: p.read_bytes() == b"some text" or len(bytes(3 << 30)), NEVER),
    "raises": Format(_note, lambda p: p.read_bytes() == b"some text" or {}["x"], NEVER),
    "names no file": Format(_note, lambda p: p.read_bytes() == b"some text" or decode_example(b"x"), NEVER),
    "other values": Format(_note, lambda p: [p.read_bytes()], NEVER),
    "other number": Format(_note, lambda p: p.read_bytes().split(b" "), VALUES),
}
"""Readers that break the law, to see that this is noticed."""


@dataclasses.dataclass
class Copy:
    """A file or folder of a format that can be damaged again and again."""

    form: Format
    place: Path
    """What is read."""
    contents: dict[Path, bytes]
    """Of its files, as they were written."""

    @classmethod
    def of(cls, name: str, folder: Path) -> "Copy":
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        form = {**TABLE, **FAULTY}[name]
        place = form.write(folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return cls(form, place, {path: path.read_bytes() for path in files})

    def damage(self, number: int) -> Path:
        """Damages one of the files in the way that `number` stands for, and returns it."""
        rng = random.Random(number)
        paths = [path for path in self.contents if self.form.only in path.as_posix()]
        path = rng.choice(paths)
        changed = self.form.change(self.contents[path], rng)
        if self.place.is_dir() and not self.form.only and rng.random() < 0.02:
            path.unlink()
        else:
            path.write_bytes(changed)
            os.utime(path, ns=(number, number))
        return path

    def repair(self, path: Path) -> None:
        path.write_bytes(self.contents[path])
