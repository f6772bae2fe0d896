"""Data sets that TFDS has prepared: folders of ArrayRecord or TFRecord files with a description.

TensorFlow is not needed.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bushel.base import redact
from bushel.base.contract import optional
from bushel.base.errors import DamagedFile, TooLarge
from bushel.base.hints import explains_arguments
from bushel.base.state_names import in_states
from bushel.sources.array_record import ArrayRecordDataSource
from bushel.sources.decompression import decompress_zlib
from bushel.sources.file_access import open_file
from bushel.sources.media import ImageMode, decode_image
from bushel.sources.paths import Options, Path, expand_path
from bushel.sources.record_files import RecordSource
from bushel.sources.tf_example import decode_example
from bushel.sources.tfds_json import (
    Entry,
    get_feature_class,
    read_json,
    shard_lengths,
    shard_names,
    split_entries,
    tensor_dtype,
    tensor_encoding,
    tensor_shape,
)
from bushel.sources.tfrecord import TFRecordDataSource

FORMATS: dict[str, type[RecordSource]] = {"array_record": ArrayRecordDataSource, "tfrecord": TFRecordDataSource}


def get_only_split(path: Path, storage_options: Options | None = None) -> str:
    """The name of the only split of a data set. Several splits, or none, are an error."""
    text = expand_path(path).rstrip("/")
    splits = list(split_entries(read_json(f"{text}/dataset_info.json", storage_options)))
    if len(splits) != 1:
        raise ValueError(
            f"{redact.show(text)} has the splits {', '.join(map(repr, splits)) or 'none'}. Open one of them with "
            "`bushel.sources.open(path, split=...)`."
        )
    return splits[0]


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
            raise splits[split].wrong("names no files: its shardLengths are missing or empty")
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
        """The examples at `indices`, read together."""
        return [self._decode(index, record) for index, record in zip(indices, self._records.__getitems__(indices))]

    def _decode(self, index: int, record: bytes) -> dict[str, Any]:
        stored = decode_example(record)
        if self._feature is None:
            return stored
        try:
            return self._feature.decode("", stored, 0)
        except (ValueError, LookupError, TypeError, ArithmeticError, zlib.error) as error:
            kind = TooLarge if isinstance(error, TooLarge) else DamagedFile
            raise kind(
                f"{self._name}: example {index} does not match {self._described} ({type(error).__name__}: {error})."
            ) from error

    def class_names(self) -> dict[str, list[str]]:
        """The names of classes by the path of their feature, such as "label": of features that have a file of them."""
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


def _list_class_labels(spec: Entry, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of the features that are numbers of classes."""
    if "classLabel" in spec:
        yield path
    elif "featuresDict" in spec:
        for name, entry in spec["featuresDict"]["features"].items():
            yield from _list_class_labels(entry, (*path, name))
    elif "sequence" in spec:
        yield from _list_class_labels(spec["sequence"]["feature"], path)


class Feature(abc.ABC):
    """How a feature is stored, and how it is decoded."""

    @abc.abstractmethod
    def decode(self, name: str, stored: dict[str, Any], rank: int) -> Any:
        """Decodes the feature `name`, which is inside `rank` sequences."""


@dataclasses.dataclass(frozen=True)
class _Dict(Feature):
    entries: dict[str, Feature]

    def decode(self, name: str, stored: dict[str, Any], rank: int) -> Any:
        prefix = f"{name}/" if name else ""
        return {key: entry.decode(prefix + key, stored, rank) for key, entry in self.entries.items()}


@dataclasses.dataclass(frozen=True)
class _Sequence(Feature):
    entry: Feature

    def decode(self, name: str, stored: dict[str, Any], rank: int) -> Any:
        return self.entry.decode(name, stored, rank + 1)


class _Leaf(Feature):
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

    @optional
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
    """How many values of a shape are stored one after the other."""
    if -1 in shape:
        raise ValueError(f"it is a sequence of values of the unknown shape {shape}")
    return len(values) // max(1, math.prod(shape))


@dataclasses.dataclass(frozen=True)
class _Bytes(_Leaf):
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


def parse_feature(spec: Entry, name: str) -> Feature:
    """The feature that an entry of `features.json` describes."""
    if "featuresDict" in spec:
        entries = spec["featuresDict"].get("features")
        return _Dict(
            {key: parse_feature(entry, f"{name}/{key}") for key, entry in (entries.items() if entries else ())}
        )
    if "sequence" in spec:
        return _Sequence(parse_feature(spec["sequence"]["feature"], name))
    if "text" in spec:
        return _Bytes(())
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


def _parse_translation(spec: Entry) -> Feature:
    """A text for each language; or, if the languages differ between examples, the languages and the texts."""
    differ = spec.get("variableLanguagesPerExample")
    if differ is not None and differ.value:
        return _Dict({name: _Sequence(_Bytes(())) for name in ("language", "translation")})
    return _Dict({language.text(): _Bytes(()) for language in spec["languages"].list()})


def _parse_tensor(spec: Entry) -> Feature:
    shape, kind = tensor_shape(spec), tensor_dtype(spec)
    if kind in ("string", "object"):
        return _Bytes(shape)
    packed: Any = {"zlib": decompress_zlib, "bytes": bytes, "none": None}[tensor_encoding(spec)]
    return _Numbers(np.dtype(kind), shape, packed)
