"""Episodes as records of TFDS's form: what kind of feature each leaf is, found from the episodes themselves."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from bushel.sources.example import encode_example
from bushel.sources.needs import package
from bushel.trajectory.arrays import is_text
from bushel.trajectory.encoded import Encoded, read_all
from bushel.trajectory.rlds_features import as_objects

ImageFormat = Literal["png", "jpeg"]
_CLASSES = "tensorflow_datasets.core.features."
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_JPEG_QUALITY = 95


class Columns:
    """The leaves of a data set that is being written: those of the first episode, which all others must have."""

    def __init__(self, image_format: ImageFormat | Mapping[str, ImageFormat]):
        formats = list(image_format.values()) if isinstance(image_format, Mapping) else [image_format]
        for unknown in set(formats) - {"png", "jpeg"}:
            raise ValueError(f"image_format is 'png' or 'jpeg', or one of them for each image, got {unknown!r}.")
        self._image_format = image_format
        self._columns: dict[tuple[str, ...], _Column] = {}

    def facts(self) -> list[Any]:
        """What is known of the leaves, as JSON has it."""
        return [[list(keys), *column.facts()] for keys, column in self._columns.items()]

    def restore(self, facts: list[Any]) -> None:
        """Takes over what `facts` has given, so that further episodes are added to those written before."""
        self._columns = {tuple(keys): _Column(tuple(keys)) for keys, *_ in facts}
        for keys, *known in facts:
            self._columns[tuple(keys)].restore(*known)

    def record(self, episode: Mapping[str, Any], where: str) -> bytes:
        """An episode as a `tf.train.Example`."""
        if not isinstance(episode, Mapping) or not isinstance(episode.get("steps"), Mapping):
            raise ValueError(f"{where}: an episode is a dict with 'steps', a dict of arrays, got {episode!r:.100}.")
        leaves = dict(_leaves(episode))
        if not self._columns:
            self._columns = {keys: _Column(keys) for keys in leaves}
        if leaves.keys() != self._columns.keys():
            differ = ", ".join(sorted("/".join(keys) for keys in leaves.keys() ^ self._columns.keys()))
            raise ValueError(f"{where} and the first episode have different leaves: only one of them has {differ}.")
        stored: dict[str, Any] = {}
        length: tuple[int, str] | None = None
        for keys, value in leaves.items():
            name = "/".join(keys)
            values = _array(value, f"{where}: {name}")
            if keys[0] != "steps":
                values = values[None]
            elif values.ndim == 0:
                raise ValueError(f"{where}: {name} has no axis of steps: it is {value!r:.100}.")
            elif length is None:
                length = len(values), name
            elif len(values) != length[0]:
                raise ValueError(f"{where}: {name} has {len(values)} steps, and {length[1]} has {length[0]}.")
            stored[name] = self._columns[keys].stored(self._encoded(values, keys, f"{where}: {name}"), where)
        return encode_example(stored)

    def _encoded(self, values: np.ndarray, keys: tuple[str, ...], where: str) -> np.ndarray:
        """Arrays that are images as encoded images; handles as their content; others as they are."""
        if values.dtype.hasobject:
            return as_objects(read_all(values.ravel().tolist())).reshape(values.shape)
        colours = (values.dtype == np.uint8 and values.shape[-1] in (1, 3, 4)) or (
            values.dtype == np.uint16 and values.shape[-1] == 1
        )
        if values.ndim != 4 or not colours:
            return values
        path = "/".join(keys[1:] if keys[0] == "steps" else keys)
        formats = self._image_format
        chosen: Any = formats.get(path, "png") if isinstance(formats, Mapping) else formats
        return as_objects([_image(value, chosen, where) for value in values])

    def features(self) -> dict[str, Any]:
        """The content of `features.json`."""
        tree: dict[str, Any] = {}
        for keys, column in self._columns.items():
            inner = tree
            for key in keys[:-1]:
                inner = inner.setdefault(key, {})
            inner[keys[-1]] = column
        top = {key: _described(entry) for key, entry in tree.items()}
        top["steps"] = _feature("dataset_feature.Dataset", "sequence", {"feature": top["steps"], "length": "-1"})
        return _feature("features_dict.FeaturesDict", "featuresDict", {"features": top})


class _Column:
    """What is known of one leaf: the type and shape of its numbers, or that all its strings are images of some size."""

    def __init__(self, keys: tuple[str, ...]):
        self._name = "/".join(keys)
        self._dtype: np.dtype[Any] | None = None
        self._shape: tuple[int, ...] = ()
        self._image: list[int | str | None] | None = None
        self._texts = False  # some string is no image

    def facts(self) -> list[Any]:
        assert self._dtype is not None
        return [self._dtype.str, list(self._shape), self._image, self._texts]

    def restore(self, dtype: str, shape: list[int], image: list[int | str | None] | None, texts: bool) -> None:
        self._dtype, self._shape, self._image, self._texts = np.dtype(dtype), tuple(shape), image, texts

    def stored(self, values: np.ndarray, where: str) -> Any:
        if self._dtype is None:
            self._dtype, self._shape = values.dtype, values.shape[1:]
        if (values.dtype, values.shape[1:]) != (self._dtype, self._shape):
            raise ValueError(
                f"{where}: {self._name} is {values.dtype} of {list(values.shape[1:])} for each step, and "
                f"{self._dtype} of {list(self._shape)} in the first episode. Give all episodes the same."
            )
        if values.dtype.hasobject and not self._texts:
            for value in values.ravel():
                self._look(value)
        return values.view(np.int64) if values.dtype == np.uint64 else values  # the same bits, as TFDS stores them

    def _look(self, value: bytes) -> None:
        found = _image_facts(value) if value else None
        if found is None:
            self._texts |= bool(value)
        elif self._image is None:
            self._image = list(found)
        else:
            self._image = [old if old == new else None for old, new in zip(self._image, found)]

    def spec(self) -> dict[str, Any]:
        """Its entry in `features.json`."""
        assert self._dtype is not None
        if not self._dtype.hasobject:
            return self._tensor(self._dtype.name)
        if self._texts or self._image is None or self._shape:
            return self._tensor("string") if self._shape else _feature("text_feature.Text", "text", {})
        kind, dtype, *sizes = self._image
        shape = {"dimensions": [str(-1 if size is None else size) for size in sizes]}
        encoding = {} if kind is None else {"encodingFormat": kind}
        return _feature("image_feature.Image", "image", {"shape": shape, "dtype": dtype or "uint8"} | encoding)

    def _tensor(self, dtype: str) -> dict[str, Any]:
        shape = {"dimensions": [str(size) for size in self._shape]} if self._shape else {}
        kind = "tensor_feature.Tensor" if self._shape else "scalar.Scalar"
        return _feature(kind, "tensor", {"shape": shape, "dtype": dtype, "encoding": "none"})


def _feature(kind: str, field: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": _CLASSES + kind, field: content}


def _described(entry: Any) -> dict[str, Any]:
    if isinstance(entry, _Column):
        return entry.spec()
    features = {key: _described(inner) for key, inner in entry.items()}
    return _feature("features_dict.FeaturesDict", "featuresDict", {"features": features})


def _leaves(tree: Mapping[str, Any], keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*keys, key))
        else:
            yield (*keys, key), value


def _array(value: Any, where: str) -> np.ndarray:
    """A value as an array of numbers, or of bytes and handles."""
    if isinstance(value, (bytes, str, Encoded)):
        value = as_objects([value]).reshape(())
    elif isinstance(value, (list, tuple)) and value and all(isinstance(item, (bytes, str, Encoded)) for item in value):
        value = as_objects(value)
    found = np.asarray(value)
    if found.dtype.kind in "biuf":
        return found
    if is_text(found):
        flat = found.ravel().tolist()
        wrong = [item for item in flat if not isinstance(item, (bytes, str, Encoded))]
        if wrong:
            raise TypeError(f"{where} should be numbers, bytes or strings, got {type(wrong[0]).__name__} in it.")
        return as_objects([item.encode() if isinstance(item, str) else item for item in flat]).reshape(found.shape)
    raise TypeError(f"{where} should be numbers, bytes or strings, got {found.dtype}.")


def _image(pixels: np.ndarray, kind: ImageFormat, where: str) -> bytes:
    """Pixels as an encoded image."""
    images = package("PIL.Image", "robots", "Encoded images")
    if kind == "jpeg" and (pixels.dtype != np.uint8 or pixels.shape[-1] == 4):
        raise ValueError(f"{where}: {pixels.dtype} of {list(pixels.shape)} cannot be a JPEG image. Choose 'png'.")
    output = io.BytesIO()
    image = images.fromarray(pixels[:, :, 0] if pixels.shape[-1] == 1 else pixels)
    image.save(output, kind, **({"quality": _JPEG_QUALITY} if kind == "jpeg" else {}))
    return output.getvalue()


def _image_facts(data: bytes) -> tuple[str, str, int, int, int] | None:
    """Format, dtype, height, width and channels of a PNG or JPEG image, by its header; None for anything else."""
    if data[:8] == _PNG and len(data) > 26:
        width, height, bits, colours = struct.unpack_from(">IIBB", data, 16)
        return "png", "uint16" if bits == 16 else "uint8", height, width, {0: 1, 2: 3, 4: 2, 6: 4}.get(colours, 3)
    place = 2
    while data[:3] == _JPEG and place + 9 < len(data):
        marker, size = struct.unpack_from(">HH", data, place)
        if 0xFFC0 <= marker <= 0xFFCF and marker not in (0xFFC4, 0xFFC8, 0xFFCC):
            height, width, channels = struct.unpack_from(">HHB", data, place + 5)
            return "jpeg", "uint8", height, width, channels
        place += 2 + size
    return None
