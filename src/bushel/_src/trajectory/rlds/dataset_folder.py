"""The folder of a prepared TFDS data set, and what its `features.json` says.

The folder is `data_dir/name[/config]/version`. The features turn the values of a record into arrays over steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile, TooLarge
from bushel._src.base.state_names import in_states
from bushel._src.sources import file_access
from bushel._src.sources.decompression import decompress_zlib
from bushel._src.sources.paths import Options, Path, expand_path, is_url
from bushel._src.sources.protocol_buffers import Located, slice_record
from bushel._src.sources.tfds import (
    JsonEntry,
    damaged_json_error,
    get_feature_class,
    read_json,
    tensor_dtype,
    tensor_encoding,
    tensor_shape,
)
from bushel._src.trajectory.data_utils import to_objects

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_INFO = "dataset_info.json"


def is_version(text: str) -> bool:
    """Return whether a text has the form "1.0.0"."""
    return _VERSION.fullmatch(text) is not None


def find_folder(name: str, data_dir: Path, options: Options | None = None) -> str:
    """Return the folder of a data set: below `data_dir`, or `data_dir` itself.

    Args:
      name: "name", "name/config", with "/1.0.0" or ":1.0.0" after it for a version.
      data_dir: a path or URL.
      options: options of the store.
    """
    root = expand_path(data_dir).rstrip("/")
    plain, _, version = name.partition(":")
    parts = plain.strip("/").split("/")
    if not version and is_version(parts[-1]):
        version = parts.pop()
    if _has_info(root, options):
        return _check_folder(root, parts[0], version, options)
    base = "/".join([root, *parts])
    if version:
        if not _has_info(f"{base}/{version}", options):
            raise _make_error(name, f"{base}/{version}", _list_folders(base, "*", options))
        return f"{base}/{version}"
    versions = [entry for entry in _list_folders(base, "*", options) if is_version(entry)]
    if not versions and (config := _choose_config(name, base, options)):
        base = f"{base}/{config}"
        versions = [entry for entry in _list_folders(base, "*", options) if is_version(entry)]
    if not versions:
        raise _make_error(name, base, _list_folders(root, "*/*", options))
    return f"{base}/{max(versions, key=lambda text: [int(number) for number in text.split('.')])}"


def _check_folder(folder: str, name: str, version: str, options: Options | None) -> str:
    """Return the folder after a check that it holds the named data set."""
    info = read_json(f"{folder}/{_INFO}", options)
    stored = info["name"].text(), info["version"].text() if "version" in info else ""
    if stored[0] != name or (version and stored[1] != version):
        wanted = f"{name} {version}".strip()
        shown = " ".join(filter(None, stored))
        raise ValueError(
            f"{redact.show(folder)} holds the data set {shown}, not {wanted}. Give the folder above it as data_dir."
        )
    return folder


def _choose_config(name: str, base: str, options: Options | None) -> str | None:
    """Return the default config of a data set, as TFDS has stored it, or its only config. None if it has no configs."""
    configs = [config for config in _list_folders(base, "*/*", options) if not config.startswith(".")]
    if len(configs) > 1:
        with contextlib.suppress(FileNotFoundError):
            default = read_json(f"{base}/.config/metadata.json", options)["defaultConfigName"]
            if default.text() not in configs:
                raise damaged_json_error(f"{default.where} is none of the configs {', '.join(configs)}.")
            return default.text()
        raise ValueError(
            f"{redact.show(base)} has several configs: {', '.join(configs)}. "
            f"Name one, as in {name + '/' + configs[0]!r}."
        )
    return configs[0] if configs else None


def _has_info(folder: str, options: Options | None) -> bool:
    try:
        file_access.open_file(f"{folder}/{_INFO}", options)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _list_folders(base: str, depth: str, options: Options | None) -> list[str]:
    """Return the names of the folders in `base` that hold a data set, `depth` ("*" or "*/*") levels down."""
    if not is_url(base):
        paths = glob.glob(f"{depth}/{_INFO}", root_dir=base)
    else:
        try:
            paths = [url.removeprefix(f"{base}/") for url in file_access.find_files(f"{base}/{depth}/{_INFO}", options)]
        except FileNotFoundError:
            return []
        except ValueError as error:  # a web server cannot list files
            raise ValueError(f"{error} Or name the version, as in 'name:1.0.0'.") from error
    return sorted({path.split("/")[0] for path in paths})


def _make_error(name: str, looked: str, there: list[str]) -> FileNotFoundError:
    missing = f"There is no prepared data set {name!r}: {redact.show(looked)} holds no {_INFO}."
    if not there:
        return FileNotFoundError(missing)
    return FileNotFoundError(f"{missing} These data sets are there: {', '.join(there)}.")


Kind = Literal["numbers", "strings", "image", "packed"]
_STEPS = "steps"


@in_states("rlds_leaf")
@dataclasses.dataclass(frozen=True)
class FeatureLeaf:
    """One leaf of the features: its keys in the tree, its name in a record, and the kind of its values.

    Attributes:
      keys: the keys in the tree, without "steps".
      name: the name in the record.
      kind: "packed" is for arrays that are stored as bytes, compressed or not.
      dtype: the dtype of numbers.
      shape: the shape of one value; -1 for an axis of unknown length.
      lengths: the lengths of the sequences around a value, the steps first; -1 for a length that is not declared.
      encoding: "zlib" or "bytes", for packed arrays.
      optional: whether the leaf may be missing in a record.
    """

    keys: tuple[str, ...]
    name: str
    kind: Kind
    dtype: str = ""
    shape: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    encoding: str = ""
    optional: bool = False

    @property
    def path(self) -> str:
        """The keys as one text, such as "observation/image"."""
        return "/".join(self.keys)

    @property
    def is_frame(self) -> bool:
        """Whether the leaf is one encoded image per step."""
        return self.kind == "image" and len(self.lengths) == 1

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of one stored value. An image or a packed array is stored as one string."""
        return () if self.kind in ("image", "packed") else self.shape

    @property
    def stored_name(self) -> str:
        """The name of the values in the record. For nested sequences the lengths are stored under other names."""
        dynamic = self.kind == "packed" and self.shape.count(-1) > 1
        return f"{self.name}{'/value' if dynamic else ''}{'/ragged_flat_values' if len(self.lengths) > 1 else ''}"


@in_states("rlds_features")
@dataclasses.dataclass(frozen=True)
class EpisodeFeatures:
    """The leaves of an episode: those of its steps, and those of the whole episode (`once`)."""

    steps: tuple[FeatureLeaf, ...]
    once: tuple[FeatureLeaf, ...]

    @functools.cached_property
    def images(self) -> tuple[FeatureLeaf, ...]:
        """The leaves that are one encoded image per step."""
        return tuple(leaf for leaf in self.steps if leaf.is_frame)


def parse_features(spec: JsonEntry, where: str) -> EpisodeFeatures:
    """Return the leaves that a `features.json` describes."""
    entries = dict(spec["featuresDict"]["features"].items()) if "features" in (spec.get("featuresDict") or ()) else {}
    if "type" in spec and not entries:
        raise ValueError(
            f"{where}: features.json has an old form of TFDS that Bushel cannot read. A newer TFDS rewrites it: "
            "builder_from_directory(folder).info.features.save_config(folder)."
        )
    steps = entries.get(_STEPS)
    inner = steps.get("sequence") if steps else None
    inner = inner.get("feature") if inner else None
    if steps is None or inner is None or "featuresDict" not in inner:
        known = ", ".join(entries) or "none"
        raise ValueError(
            f"{where} is not an RLDS data set: it has no sequence of steps among its features ({known}). "
            "Use bushel.sources.TFDSDataSource for other TFDS data sets."
        )
    once = {key: entry for key, entry in entries.items() if key != _STEPS}
    return EpisodeFeatures(
        tuple(_list_leaves(steps, (), _STEPS, (), where)),
        tuple(leaf for key, entry in once.items() for leaf in _list_leaves(entry, (key,), key, (), where)),
    )


def _list_leaves(
    spec: JsonEntry, keys: tuple[str, ...], name: str, lengths: tuple[int, ...], where: str
) -> Iterator[FeatureLeaf]:
    if "featuresDict" in spec:
        inner = spec["featuresDict"].get("features")
        for key, entry in inner.items() if inner else ():
            yield from _list_leaves(entry, (*keys, key), f"{name}/{key}", lengths, where)
    elif "sequence" in spec:
        inner = spec["sequence"]
        length = inner["length"].integer(-1) if "length" in inner else -1
        yield from _list_leaves(inner["feature"], keys, name, (*lengths, length), where)
    elif "text" in spec:
        yield FeatureLeaf(keys, name, "strings", lengths=lengths)
    elif "image" in spec:
        yield FeatureLeaf(keys, name, "image", lengths=lengths)
    elif "classLabel" in spec:
        yield FeatureLeaf(keys, name, "numbers", "int64", lengths=lengths)
    elif "tensor" in spec or "boundingBox" in spec:
        yield _make_tensor_leaf(spec["tensor" if "tensor" in spec else "boundingBox"], keys, name, lengths, where)
    else:
        raise ValueError(
            f"{where}: {name} is a feature of the kind {get_feature_class(spec)}, which Bushel cannot read. It reads "
            "images, texts, labels, tensors and sequences of these."
        )


def _make_tensor_leaf(
    spec: JsonEntry, keys: tuple[str, ...], name: str, lengths: tuple[int, ...], where: str
) -> FeatureLeaf:
    shape, dtype, encoding = tensor_shape(spec), tensor_dtype(spec), tensor_encoding(spec)
    given = spec.get("optional")
    optional = given is not None and bool(given.value)
    if dtype in ("string", "object"):
        return FeatureLeaf(keys, name, "strings", shape=shape, lengths=lengths, optional=optional)
    if encoding in ("zlib", "bytes"):
        return FeatureLeaf(keys, name, "packed", dtype, shape, lengths, encoding, optional)
    if shape.count(-1) > 1:
        raise ValueError(
            f"{where}: {name} has the shape {shape} with more than one unknown size. TFDS stores such a tensor only "
            "with encoding='zlib' or 'bytes'."
        )
    return FeatureLeaf(keys, name, "numbers", dtype, shape, lengths, optional=optional)


class Values:
    """The leaves of one record as arrays. Byte strings are copied from the record when `read` is called."""

    def __init__(self, record: bytes, located: Mapping[str, Located], where: str):
        self._record, self._located, self._where = record, located, where

    def count_steps(self, leaf: FeatureLeaf) -> int | None:
        """Return the number of steps that the stored values of a leaf are for; None if the values do not determine
        it.
        """
        if len(leaf.lengths) > 1:
            return len(self._numbers(f"{leaf.name}/ragged_row_lengths_0", leaf))
        per_step = int(np.prod(leaf.stored_shape, dtype=np.int64))
        if per_step <= 0:
            return None
        entry = self._located.get(leaf.stored_name)
        values = None if entry is None else entry.numbers if entry.places is None else entry.places
        return (0 if values is None else len(values)) // per_step

    def places(self, leaf: FeatureLeaf) -> np.ndarray:
        """Return the places of the byte strings of a leaf in the record: (start, size)."""
        entry = self._located.get(leaf.stored_name)
        if entry is None:
            raise self.wrong(leaf, "The record does not have it.")
        if entry.places is None:
            if entry.numbers is not None and len(entry.numbers):
                raise self.wrong(leaf, "It should be bytes, but it is numbers.")
            return np.zeros((0, 2), np.int64)
        return entry.places

    def frames(self, leaf: FeatureLeaf, steps: int) -> np.ndarray:
        """Return the places of a leaf that is one image per step."""
        places = self.places(leaf)
        if len(places) != steps:
            raise self.wrong(leaf, f"{len(places)} images are stored for {steps} steps.")
        return places

    def read(self, leaf: FeatureLeaf, steps: int | None, *, unpack: bool) -> Any:
        """Return the value of a leaf with a leading axis of `steps`; or of a leaf of the whole episode, with None.

        Sequences inside steps are one array if their lengths are declared, else an array of arrays.
        """
        rank = len(leaf.lengths)
        if leaf.stored_name not in self._located:
            if steps is None and leaf.optional:
                return _make_default(leaf)
            raise self.wrong(leaf, "The record does not have it.")
        rows = self._read_rows(leaf, {0: 1, 1: -1 if steps is None else steps}.get(rank, -1), unpack=unpack)
        if rank == 0:
            return rows[0]
        if rank > 1:
            rows = self._group_rows(leaf, rows)
        if steps is not None and len(rows) != steps:
            raise self.wrong(leaf, f"{len(rows)} values are stored for {steps} steps.")
        return rows

    def _read_rows(self, leaf: FeatureLeaf, count: int, *, unpack: bool) -> np.ndarray:
        """Return the stored values, each with its shape. There must be `count` of them, or any number for -1."""
        if leaf.kind == "numbers":
            flat = _cast(self._numbers(leaf.stored_name, leaf), leaf.dtype)
        else:
            flat = to_objects(slice_record(self._record, self.places(leaf)))
        if leaf.kind == "packed":
            return self._unpack(leaf, flat, count, unpack=unpack)
        shape, per_value = leaf.stored_shape, abs(int(np.prod(leaf.stored_shape, dtype=np.int64)))
        if count < 0:
            count = len(flat) // max(per_value, 1)
        if count == 0 and not len(flat):
            shape = tuple(max(size, 0) for size in shape)
        try:
            return flat.reshape(count, *shape)
        except ValueError:
            raise self.wrong(leaf, f"{len(flat)} values are stored, which do not make {count} of {shape}.") from None

    def _unpack(self, leaf: FeatureLeaf, flat: np.ndarray, count: int, *, unpack: bool) -> Any:
        """Return arrays that are stored as bytes: the bytes, or with `unpack` the arrays, stacked if they have one
        shape.
        """
        if 0 <= count != len(flat):
            raise self.wrong(leaf, f"{len(flat)} values are stored, but there should be {count}.")
        if not unpack:
            return flat
        if not len(flat):
            return np.zeros((0, *(max(size, 0) for size in leaf.shape)), leaf.dtype)
        shapes: Any = [leaf.shape] * len(flat)
        if leaf.shape.count(-1) > 1:
            shapes = self._numbers(f"{leaf.name}/shape", leaf)
        try:
            rows = [
                np.frombuffer(decompress_zlib(value) if leaf.encoding == "zlib" else value, leaf.dtype).reshape(shape)
                for value, shape in zip(flat, np.reshape(shapes, (len(flat), len(leaf.shape))))
            ]
        except TooLarge as error:
            raise TooLarge(f"{self._where}: a value of {leaf.name} is not read: {error}") from None
        except (zlib.error, ValueError) as error:
            raise self.wrong(leaf, f"A value cannot be unpacked: {error}.") from error
        return np.stack(rows) if len({row.shape for row in rows}) == 1 else to_objects(rows)

    def _group_rows(self, leaf: FeatureLeaf, rows: np.ndarray) -> np.ndarray:
        inner = leaf.lengths[1:]
        if -1 not in inner:
            per_step = math.prod(inner)
            if per_step < 1 or len(rows) % per_step:
                raise self.wrong(leaf, f"{len(rows)} values are stored, which do not make sequences of {inner}.")
            return rows.reshape(len(rows) // per_step, *inner, *rows.shape[1:])
        for level in reversed(range(len(inner))):
            ends = np.cumsum(self._numbers(f"{leaf.name}/ragged_row_lengths_{level}", leaf)).tolist()
            if (ends[-1] if ends else 0) != len(rows):
                raise self.wrong(
                    leaf, f"{len(rows)} values are stored, but their lengths add up to {ends[-1] if ends else 0}."
                )
            rows = to_objects([rows[low:high] for low, high in zip([0, *ends], ends)])
        return rows

    def _numbers(self, name: str, leaf: FeatureLeaf) -> np.ndarray:
        entry = self._located.get(name)
        if entry is None or entry.numbers is None:
            if entry is not None and entry.places is not None and len(entry.places):
                raise self.wrong(leaf, "It should be numbers, but it is bytes.")
            return np.zeros(0, np.int64)
        return entry.numbers

    def wrong(self, leaf: FeatureLeaf, sentence: str) -> DamagedFile:
        """Return the error for a leaf that differs from its declaration."""
        return DamagedFile(f"{self._where}: {leaf.name} is not what features.json says. {sentence}")


def _cast(values: np.ndarray, dtype: str) -> np.ndarray:
    kind = np.dtype(dtype)
    return values.view(np.uint64) if kind == np.uint64 else values.astype(kind, copy=False)


def _make_default(leaf: FeatureLeaf) -> Any:
    """Return the value that TFDS returns for an optional leaf that a record does not have."""
    if leaf.kind == "strings":
        return np.full(leaf.shape, b"", object) if leaf.shape else b""
    kind = np.dtype(leaf.dtype)
    value: Any = False if kind.kind == "b" else (np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)).min
    return np.full([max(size, 0) for size in leaf.shape], value, kind)[()]
