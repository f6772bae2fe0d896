"""Data sets that TFDS has prepared: folders of ArrayRecord or TFRecord files, described by JSON files.

TensorFlow is not needed. The JSON files are not trusted: they come with the data. They are read entry by entry and
checked; an error names the file and the place in it. A name of a file in them never leads outside the data set's
folder.
"""

from __future__ import annotations

import abc
import dataclasses
import json
import math
import re
import string
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile, TooLarge
from bushel._src.base.hints import explains_arguments
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states, overridable
from bushel._src.sources import file_access
from bushel._src.sources.array_record import ArrayRecordDataSource
from bushel._src.sources.decompression import decompress_zlib
from bushel._src.sources.file_access import open_file
from bushel._src.sources.media import ImageMode, decode_image
from bushel._src.sources.paths import Options, Path, expand_path
from bushel._src.sources.protocol_buffers import decode_example
from bushel._src.sources.record_files import JoinedRecords
from bushel._src.sources.size_limits import get_limits
from bushel._src.sources.tfrecord import TFRecordDataSource

_LARGEST_FILE = 64 << 20  # bytes; known data sets have a few MB at most
_LARGEST_NUMBER = 1 << 40
_DEEPEST = 50  # features inside features
_MOST_AXES = 32
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_INTEGER = re.compile(r"-?\d{1,15}")
_DTYPE = re.compile(r"[a-z][a-z0-9_]{0,30}")
_ENCODINGS = ("none", "zlib", "bytes")


@dataclasses.dataclass(frozen=True)
class JsonEntry:
    """A value of a JSON file. Its methods check the type; an error names the file and the place in it."""

    value: Any
    file: str
    place: str = ""
    depth: int = 0

    @property
    def where(self) -> str:
        """The file and the place in it, as the subject of an error message."""
        return f"{self.file}: {self.place or 'its content'}"

    def _check_type(self, kind: type, name: str) -> Any:
        if not isinstance(self.value, kind) or isinstance(self.value, bool):
            raise damaged_json_error(f"{self.where} must be {name}, but is {_shorten(self.value)}.")
        return self.value

    def _get_entry(self, key: str | int) -> JsonEntry:
        if self.depth >= _DEEPEST * 3:  # each feature is a few objects deep
            raise damaged_json_error(f"{self.where} is nested too deeply.")
        place = f"{self.place}[{key}]" if isinstance(key, int) else f"{self.place}.{key}" if self.place else key
        return JsonEntry(self.value[key], self.file, place[:300], self.depth + 1)

    def __contains__(self, key: str) -> bool:
        """Return whether a JSON object has an entry of this name that is not null."""
        return self._check_type(dict, "an object").get(key) is not None

    def __getitem__(self, key: str) -> JsonEntry:
        """Return an entry that a JSON object must have."""
        if key not in self:
            known = ", ".join(map(repr, list(self.value)[:10])) or "none"
            raise damaged_json_error(f"{self.where} must have an entry {key!r}, but has {known[:300]}.")
        return self._get_entry(key)

    def get(self, key: str) -> JsonEntry | None:
        """Return an entry that a JSON object may have; None without it."""
        return self._get_entry(key) if key in self else None

    def items(self) -> Iterator[tuple[str, JsonEntry]]:
        """Yield the entries of a JSON object."""
        for key in self._check_type(dict, "an object"):
            yield key, self._get_entry(key)

    def list(self) -> list[JsonEntry]:
        """Return the entries of a list."""
        return [self._get_entry(number) for number in range(len(self._check_type(list, "a list")))]

    def text(self) -> str:
        """Return the value as a text."""
        return self._check_type(str, "a text")

    def integer(self, low: int = 0) -> int:
        """Return the value as an integer, `low` or above. TFDS writes some integers as texts."""
        value = self.value
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            value = int(value)
        if type(value) is not int or not low <= value <= _LARGEST_NUMBER:
            raise damaged_json_error(
                f"{self.where} must be an integer from {low} to {_LARGEST_NUMBER}, but is {_shorten(self.value)}."
            )
        return value


def damaged_json_error(sentence: str) -> DamagedFile:
    """Return the error to raise for a wrong value in a JSON file. The sentence says what is wrong, and where."""
    return DamagedFile(f"{sentence} Was the file copied in full, and did TFDS write it?")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."


def read_json(path: str, options: Options | None) -> JsonEntry:
    """Read a JSON file, local or remote, whose content must be an object."""
    file = file_access.open_file(path, options)
    if file.size > _LARGEST_FILE:
        raise DamagedFile(f"{file.name} has {file.size} bytes, which is too much for a description of a data set.")
    try:
        content = json.loads(file.read(0, file.size))
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{file.name} cannot be read as JSON: {error}. Was it copied in full?") from error
    entry = JsonEntry(content, file.name)
    for _ in entry.items():  # raises an error unless it is an object
        break
    return entry


def split_entries(info: JsonEntry) -> dict[str, JsonEntry]:
    """Return the splits that a `dataset_info.json` describes, by name."""
    splits = info.get("splits")
    found: dict[str, JsonEntry] = {}
    for entry in splits.list() if splits else ():
        name = entry["name"].text()
        if name in found:
            raise damaged_json_error(f"{entry.where} is a second split {name!r}.")
        found[name] = entry
    return found


def shard_lengths(split: JsonEntry) -> list[int]:
    """Return the number of examples in each file of a split."""
    lengths = split.get("shardLengths")
    return [entry.integer() for entry in lengths.list()] if lengths else []


def shard_names(dataset: str, split: JsonEntry, kind: str) -> list[str]:
    """Return the names of the files of a split, relative to the folder of the data set."""
    count = len(shard_lengths(split))
    given = split.get("filepathTemplate")
    template = given.text() if given else ""
    parts = _parse_template(template or _TEMPLATE, given or split)
    names = []
    for number in range(count):
        values = {
            "DATASET": dataset,
            "SPLIT": split["name"].text(),
            "FILEFORMAT": kind,
            "SHARD_X_OF_Y": f"{number:05d}-of-{count:05d}",
            "SHARD_INDEX": f"{number:05d}",
            "NUM_SHARDS": f"{count:05d}",
        }
        name = "".join(literal + values.get(field, "") for literal, field in parts)
        if not _is_inside(name):
            raise damaged_json_error(
                f"{(given or split).where} names the file {_shorten(name)}, which is not in the folder of the data set."
            )
        names.append(name)
    return names


def _parse_template(template: str, entry: JsonEntry) -> list[tuple[str, str]]:
    """Parse a template into pairs: a text, and the name of the field after it. Fields may have no format."""
    known = ("DATASET", "SPLIT", "FILEFORMAT", "SHARD_X_OF_Y", "SHARD_INDEX", "NUM_SHARDS")
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise damaged_json_error(f"{entry.where} is not a template of file names: {error}.") from None
    for _, field, width, conversion in fields:
        if (field is not None and field not in known) or width or conversion:
            raise damaged_json_error(
                f"{entry.where} is not a template of file names: its fields may be {', '.join(known)}, without a "
                "format."
            )
    return [(literal, field or "") for literal, field, _, _ in fields]


def _is_inside(name: str) -> bool:
    """Return whether a name is a relative path inside a folder: without "..", not absolute, and not a pattern."""
    parts = name.split("/")
    return 0 < len(name) < 1000 and not re.search(r"[*?\[\]\\\0]", name) and not {"", ".", "..", "~"} & set(parts)


def tensor_shape(spec: JsonEntry) -> tuple[int, ...]:
    """Return the shape that an entry of `features.json` states; -1 for an axis of unknown length."""
    shape = spec.get("shape")
    dimensions = shape.get("dimensions") if shape else None
    if dimensions is None:
        return ()
    found = tuple(entry.integer(-1) for entry in dimensions.list())
    dtype = tensor_dtype(spec)
    itemsize = np.dtype(object if dtype == "string" else dtype).itemsize
    known = math.prod(size for size in found if size > 0) * itemsize
    if len(found) > _MOST_AXES or known > get_limits().record_bytes:
        raise damaged_json_error(
            f"{dimensions.where} states {known} bytes in {len(found)} axes, more than a record may have."
        )
    return found


def tensor_dtype(spec: JsonEntry) -> str:
    """Return the dtype of an entry of `features.json`: "string", "object", or a numeric type."""
    given = spec.get("dtype")
    name = given.text() if given else "float32"
    if name not in ("string", "object") and not _is_number_type(name):
        raise damaged_json_error(
            f"{(given or spec).where} must be the name of a numeric NumPy dtype, but is {_shorten(name)}."
        )
    return name


def _is_number_type(name: str) -> bool:
    if not _DTYPE.fullmatch(name):
        return False
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError):
        return False
    return dtype.kind in "biufcV" and 0 < dtype.itemsize <= 16 and dtype.names is None


def tensor_encoding(spec: JsonEntry) -> str:
    """Return how the arrays of an entry of `features.json` are stored: "none", "zlib" or "bytes"."""
    given = spec.get("encoding")
    name = given.text().lower() if given else "none"
    if name not in _ENCODINGS:
        raise damaged_json_error(
            f"{(given or spec).where} must be one of {', '.join(_ENCODINGS)}, but is {_shorten(name)}."
        )
    return name


def get_feature_class(spec: JsonEntry) -> str:
    """Return the name of the feature class in an entry of `features.json`, for error messages."""
    name = spec.get("pythonClassName")
    return name.text().rpartition(".")[2] if name else "?"


FORMATS: dict[str, type[JoinedRecords]] = {"array_record": ArrayRecordDataSource, "tfrecord": TFRecordDataSource}


def get_only_split(path: Path, storage_options: Options | None = None) -> str:
    """Return the name of the only split of a data set. Several splits, or none, are an error."""
    text = expand_path(path).rstrip("/")
    splits = list(split_entries(read_json(f"{text}/dataset_info.json", storage_options)))
    if len(splits) != 1:
        raise ValueError(
            f"{redact.show(text)} has the splits {', '.join(map(repr, splits)) or 'none'}. Open one of them with "
            "`bushel.sources.open(path, split=...)`."
        )
    return splits[0]


@public("bushel.sources")
@in_states("TFDSDataSource")
class TFDSDataSource:
    """Examples of one split of a prepared TFDS data set, decoded according to its `features.json`.

    Numbers are NumPy arrays and scalars of the declared types, texts are bytes, images are uint8 arrays. A sequence is
    an array with a leading axis, or a list if its entries differ in shape. A sequence of dicts, such as the steps of an
    episode, is a dict of such sequences.

    Args:
      path: the folder with `dataset_info.json`, for example ~/tensorflow_datasets/mnist/3.0.1; a path or URL.
      split: the name of a split, such as "train".
      decode: False returns the features of each `tf.train.Example` as they are stored.
      storage_options: options of the store that holds the folder.
    """

    @explains_arguments('Write `TFDSDataSource(path, split="train")`.')
    def __init__(self, path: Path, *, split: str, decode: bool = True, storage_options: Options | None = None):
        text = expand_path(path).rstrip("/")
        shown = redact.show(text)
        info = read_json(f"{text}/dataset_info.json", storage_options)
        name, splits = info["name"].text(), split_entries(info)
        if split not in splits:
            known = ", ".join(map(repr, splits))
            raise ValueError(f"{shown} has no split {split!r}; it has {known}. Slice a dataset with ds[:100].")
        kind = info["fileFormat"].text() if "fileFormat" in info else "tfrecord"
        if kind not in FORMATS:
            raise ValueError(f"{shown} has {kind} files, but Bushel reads only {' and '.join(FORMATS)} files.")
        paths = [f"{text}/{file}" for file in shard_names(name, splits[split], kind)]
        if not paths:
            raise damaged_json_error(f"{splits[split].where} names no files: its shardLengths are missing or empty.")
        self._name, self._folder, self._options = f"{name}/{split}", text, redact.Options(storage_options or {})
        self._records = FORMATS[kind](paths, storage_options=storage_options)
        stated = sum(shard_lengths(splits[split]))
        if stated != len(self._records):
            raise ValueError(
                f"{shown}: the split {split!r} should have {stated} examples, but it has {len(self._records)}."
            )
        self._described = f"{shown}/features.json"
        self._feature = (
            parse_feature(read_json(f"{text}/features.json", storage_options), self._name) if decode else None
        )

    @property
    def costs_round_trip(self) -> bool:
        """Whether the records are in files behind URLs."""
        return self._records.costs_round_trip

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._decode(index, self._records[index])

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """Return the examples at `indices`, read together."""
        return [self._decode(index, record) for index, record in zip(indices, self._records.__getitems__(indices))]

    def _decode(self, index: int, record: bytes) -> dict[str, Any]:
        stored = decode_example(record)
        if self._feature is None:
            return stored
        try:
            return self._feature.decode("", stored, 0)
        except TooLarge as error:
            raise TooLarge(f"{self._name}: example {index} is not read: {error}") from error
        except (ValueError, LookupError, TypeError, ArithmeticError, zlib.error) as error:
            raise DamagedFile(
                f"{self._name}: example {index} does not match {self._described} ({type(error).__name__}: {error})."
            ) from error

    def class_names(self) -> dict[str, list[str]]:
        """Return the names of classes by the path of their feature, such as "label": of features that have a file of
        them.
        """
        features = read_json(f"{self._folder}/features.json", self._options)
        found = {}
        for path in _list_class_labels(features, ()):
            try:
                file = open_file(f"{self._folder}/{'-'.join(path)}.labels.txt", self._options)
            except FileNotFoundError:
                continue
            lines = file.read(0, file.size).decode(errors="replace").split("\n")
            found["/".join(path)] = [line.strip() for line in lines if line.strip()]
        return found

    def fingerprint(self) -> Any:
        return self._records.fingerprint()

    def __repr__(self) -> str:
        return f"TFDSDataSource({self._name}: {len(self)} records)"


def _list_class_labels(spec: JsonEntry, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the features that are numbers of classes."""
    if "classLabel" in spec:
        yield path
    elif "featuresDict" in spec:
        for name, entry in spec["featuresDict"]["features"].items():
            yield from _list_class_labels(entry, (*path, name))
    elif "sequence" in spec:
        yield from _list_class_labels(spec["sequence"]["feature"], path)


class FeatureDecoder(abc.ABC):
    """How a feature is stored, and how it is decoded."""

    @abc.abstractmethod
    def decode(self, name: str, stored: dict[str, Any], rank: int) -> Any:
        """Decode the feature `name`, which is inside `rank` sequences."""


@dataclasses.dataclass(frozen=True)
class _Dict(FeatureDecoder):
    entries: dict[str, FeatureDecoder]

    def decode(self, name: str, stored: dict[str, Any], rank: int) -> Any:
        prefix = f"{name}/" if name else ""
        return {key: entry.decode(prefix + key, stored, rank) for key, entry in self.entries.items()}


@dataclasses.dataclass(frozen=True)
class _Sequence(FeatureDecoder):
    entry: FeatureDecoder

    def decode(self, name: str, stored: dict[str, Any], rank: int) -> Any:
        return self.entry.decode(name, stored, rank + 1)


class _Leaf(FeatureDecoder):
    """A feature without features inside it. In a sequence, values are stored one after the other.

    For a sequence in a sequence, the lengths of the inner ones are stored too.
    """

    def decode(self, name: str, stored: dict[str, Any], rank: int) -> Any:
        if rank < 2:
            values = stored.get(name)
            if values is None and f"{name}/value" in stored:  # an array with several axes of unknown length
                return self.decode_shaped(stored[f"{name}/value"], stored[f"{name}/shape"])
            if values is None:
                return None
            return self.decode_many(values) if rank else self.decode_one(values)
        rows = self.decode_many(stored[f"{name}/ragged_flat_values"])
        for level in reversed(range(rank - 1)):
            ends = np.cumsum(stored[f"{name}/ragged_row_lengths_{level}"]).tolist()
            rows = [rows[low:high] for low, high in zip([0, *ends], ends)]
        return rows

    @abc.abstractmethod
    def decode_one(self, values: Any) -> Any: ...

    @abc.abstractmethod
    def decode_many(self, values: Any) -> Any: ...

    @overridable
    def decode_shaped(self, values: Any, shape: Any) -> Any:
        raise ValueError(f"the value has its own shape {shape}, which only numbers may have")


@dataclasses.dataclass(frozen=True)
class _Numbers(_Leaf):
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    packed: Callable[[bytes], bytes] | None = None

    def decode_one(self, values: Any) -> Any:
        found = self._to_array(values).reshape(self.shape)
        return found if found.ndim else found[()]

    def decode_many(self, values: Any) -> Any:
        count = _count_values(values, self.shape)
        return self._to_array(values).reshape(len(values) if self.packed else count, *self.shape)

    def decode_shaped(self, values: Any, shape: Any) -> Any:
        return self._to_array(values).reshape(tuple(np.asarray(shape).tolist()))

    def _to_array(self, values: Any) -> np.ndarray:
        if self.packed is not None:
            return np.frombuffer(b"".join(map(self.packed, values)), self.dtype).copy()
        if self.dtype == np.uint64:
            return np.asarray(values, np.int64).view(np.uint64)
        return np.asarray(values).astype(self.dtype)


def _count_values(values: Any, shape: tuple[int, ...]) -> int:
    """Return how many values of a shape are stored one after the other."""
    if -1 in shape:
        raise ValueError(f"it is a sequence of values of the unknown shape {shape}")
    return len(values) // max(1, math.prod(shape))


@dataclasses.dataclass(frozen=True)
class _ByteString(_Leaf):
    shape: tuple[int, ...]

    def decode_one(self, values: Any) -> Any:
        if not self.shape:
            return values[0]
        return self._to_array(values).reshape(self.shape)

    def decode_many(self, values: Any) -> Any:
        if not self.shape:
            return list(values)
        return self._to_array(values).reshape(_count_values(values, self.shape), *self.shape)

    def _to_array(self, values: Any) -> np.ndarray:
        found = np.empty(len(values), object)
        found[:] = values
        return found


@dataclasses.dataclass(frozen=True)
class _Image(_Leaf):
    mode: ImageMode | None

    def decode_one(self, values: Any) -> np.ndarray:
        return decode_image(values[0], self.mode)

    def decode_many(self, values: Any) -> Any:
        images = [decode_image(value, self.mode) for value in values]
        return np.stack(images) if len({image.shape for image in images}) == 1 else images


def parse_feature(spec: JsonEntry, name: str) -> FeatureDecoder:
    """Return the feature that an entry of `features.json` describes."""
    if "featuresDict" in spec:
        entries = spec["featuresDict"].get("features")
        return _Dict(
            {key: parse_feature(entry, f"{name}/{key}") for key, entry in (entries.items() if entries else ())}
        )
    if "sequence" in spec:
        return _Sequence(parse_feature(spec["sequence"]["feature"], name))
    if "text" in spec:
        return _ByteString(())
    if "translation" in spec:
        return _parse_translation(spec["translation"])
    if "classLabel" in spec:
        return _Numbers(np.dtype(np.int64), ())
    for kind in ("tensor", "boundingBox"):
        if kind in spec:
            return _parse_tensor(spec[kind])
    if "image" in spec and ("dtype" not in spec["image"] or tensor_dtype(spec["image"]) == "uint8"):
        shape = tensor_shape(spec["image"])
        modes: dict[int, ImageMode] = {1: "L", 3: "RGB", 4: "RGBA"}
        return _Image(modes.get(shape[2] if len(shape) > 2 else -1))
    raise ValueError(
        f"{name}: Bushel does not decode features of the kind {get_feature_class(spec)}. Pass decode=False and decode "
        "them yourself."
    )


def _parse_translation(spec: JsonEntry) -> FeatureDecoder:
    """Return a text for each language; or, if the languages differ between examples, the languages and the texts."""
    differ = spec.get("variableLanguagesPerExample")
    if differ is not None and differ.value:
        return _Dict({name: _Sequence(_ByteString(())) for name in ("language", "translation")})
    return _Dict({language.text(): _ByteString(()) for language in spec["languages"].list()})


def _parse_tensor(spec: JsonEntry) -> FeatureDecoder:
    shape, kind = tensor_shape(spec), tensor_dtype(spec)
    if kind in ("string", "object"):
        return _ByteString(shape)
    packed: Any = {"zlib": decompress_zlib, "bytes": bytes, "none": None}[tensor_encoding(spec)]
    return _Numbers(np.dtype(kind), shape, packed)
