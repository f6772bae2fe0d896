"""Encodes episodes as records of TFDS's form, and finds the feature of each leaf from the episodes themselves."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from bushel._src.base import checks
from bushel._src.sources.optional_packages import import_package
from bushel._src.sources.tf_example import encode_example
from bushel._src.trajectory.data_utils import flatten_tree, nest_leaves
from bushel._src.trajectory.encoded_images import Encoded, read_all
from bushel._src.trajectory.numpy_or_jax import is_text, to_objects
from bushel._src.trajectory.stored_pixels import MAGIC, unpack_pixels

ImageFormat = Literal["png", "jpeg"]
_CLASSES = "tensorflow_datasets.core.features."
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_JPEG_QUALITY = 95


class EpisodeEncoder:
    """Encodes the episodes of one data set. All episodes must have the leaves of the first one."""

    def __init__(self, image_format: ImageFormat | Mapping[str, ImageFormat]):
        formats = list(image_format.values()) if isinstance(image_format, Mapping) else [image_format]
        for one in formats:
            checks.choice(one, ImageFormat, "image_format")
        self._image_format = image_format
        self._leaves: dict[tuple[str, ...], _LeafEncoder] = {}

    def facts(self) -> list[Any]:
        """The dtypes and shapes of all leaves so far, as plain data for JSON."""
        return [[list(keys), *leaf.facts()] for keys, leaf in self._leaves.items()]

    def restore(self, facts: list[Any]) -> None:
        """Restores what `facts` has returned, so that more episodes can be added to those written before."""
        self._leaves = {tuple(keys): _LeafEncoder(tuple(keys)) for keys, *_ in facts}
        for keys, *known in facts:
            self._leaves[tuple(keys)].restore(*known)

    def merge(self, facts: list[Any]) -> None:
        """Adds what another encoder, of other episodes of the same data set, has found out (`facts`)."""
        other = EpisodeEncoder("png")
        other.restore(facts)
        if other._leaves.keys() != self._leaves.keys():
            raise ValueError("The files have episodes with different leaves.")
        for keys, leaf in other._leaves.items():
            self._leaves[keys].merge(leaf)

    def encode(self, episode: Mapping[str, Any], where: str) -> bytes:
        """An episode as a `tf.train.Example`."""
        if not isinstance(episode, Mapping) or not isinstance(episode.get("steps"), Mapping):
            raise ValueError(
                f"{where}: an episode must be a dict with 'steps', a dict of arrays, got {episode!r:.100}."
            )
        leaves = flatten_tree(episode)
        if not self._leaves:
            self._leaves = {keys: _LeafEncoder(keys) for keys in leaves}
        if leaves.keys() != self._leaves.keys():
            differ = ", ".join(sorted("/".join(keys) for keys in leaves.keys() ^ self._leaves.keys()))
            raise ValueError(f"{where} and the first episode have different leaves: only one of them has {differ}.")
        stored: dict[str, Any] = {}
        length: tuple[int, str] | None = None
        for keys, value in leaves.items():
            name = "/".join(keys)
            values = _make_array(value, f"{where}: {name}")
            if keys[0] != "steps":
                values = values[None]
            elif values.ndim == 0:
                raise ValueError(f"{where}: {name} has no axis of steps: it is {value!r:.100}.")
            elif length is None:
                length = len(values), name
            elif len(values) != length[0]:
                raise ValueError(f"{where}: {name} has {len(values)} steps, and {length[1]} has {length[0]}.")
            stored[name] = self._leaves[keys].encode(self._encode_images(values, keys, f"{where}: {name}"), where)
        return encode_example(stored)

    def _encode_images(self, values: np.ndarray, keys: tuple[str, ...], where: str) -> np.ndarray:
        """Encodes arrays that are images, and reads handles of images. Other arrays stay as they are."""
        if values.dtype.hasobject:
            contents = read_all(values.ravel().tolist())
            if any(content.startswith(MAGIC) for content in contents):
                arrays = _unpack_floats(contents, where)
                if arrays is not None:
                    return arrays
                contents = [self._encode_pixels(content, keys, where) for content in contents]
            return to_objects(contents).reshape(values.shape)
        colours = (values.dtype == np.uint8 and values.shape[-1] in (1, 3, 4)) or (
            values.dtype == np.uint16 and values.shape[-1] == 1
        )
        if values.ndim != 4 or not colours:
            return values
        chosen = self._choose_format(keys)
        return to_objects([encode_image(value, chosen, where) for value in values])

    def _choose_format(self, keys: tuple[str, ...]) -> Any:
        path = "/".join(keys[1:] if keys[0] == "steps" else keys)
        formats = self._image_format
        return formats.get(path, "png") if isinstance(formats, Mapping) else formats

    def _encode_pixels(self, content: bytes, keys: tuple[str, ...], where: str) -> bytes:
        """A frame that its file holds as an array of pixels, encoded. Other images stay as they are."""
        if not content.startswith(MAGIC):
            return content
        pixels = unpack_pixels(content)
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        return encode_image(pixels, self._choose_format(keys) if pixels.dtype == np.uint8 else "png", where)

    def features(self) -> dict[str, Any]:
        """The content of `features.json`."""
        top = {key: _describe(entry) for key, entry in nest_leaves(self._leaves).items()}
        top["steps"] = _feature("dataset_feature.Dataset", "sequence", {"feature": top["steps"], "length": "-1"})
        return _feature("features_dict.FeaturesDict", "featuresDict", {"features": top})


class _LeafEncoder:
    """One leaf of all episodes: its dtype and shape, and whether all of its strings are images, of which size."""

    def __init__(self, keys: tuple[str, ...]):
        self._name = "/".join(keys)
        self._dtype: np.dtype[Any] | None = None
        self._shape: tuple[int, ...] = ()
        self._image: list[int | str | None] | None = None
        self._texts = False  # whether some string is not an image

    def facts(self) -> list[Any]:
        assert self._dtype is not None
        return [self._dtype.str, list(self._shape), self._image, self._texts]

    def restore(self, dtype: str, shape: list[int], image: list[int | str | None] | None, texts: bool) -> None:
        self._dtype, self._shape, self._image, self._texts = np.dtype(dtype), tuple(shape), image, texts

    def merge(self, other: _LeafEncoder) -> None:
        if (other._dtype, other._shape) != (self._dtype, self._shape):
            raise ValueError(f"{self._name} is {self._dtype}{self._shape} in one file, {other._dtype} in another.")
        self._texts |= other._texts
        if other._image is not None:
            self._add_image(other._image)

    def encode(self, values: np.ndarray, where: str) -> Any:
        if self._dtype is None:
            self._dtype, self._shape = values.dtype, values.shape[1:]
        if values.shape == (0,):  # an empty list, which has neither a dtype nor a shape of its entries
            values = np.zeros((0, *self._shape), self._dtype)
        if (values.dtype, values.shape[1:]) != (self._dtype, self._shape):
            raise ValueError(
                f"{where}: {self._name} is {values.dtype} of {list(values.shape[1:])} for each step, and "
                f"{self._dtype} of {list(self._shape)} in the first episode. Give all episodes the same."
            )
        if values.dtype.hasobject and not self._texts:
            for value in values.ravel():
                self._inspect(value)
        return values.view(np.int64) if values.dtype == np.uint64 else values  # the same bits, as TFDS stores them

    def _inspect(self, value: bytes) -> None:
        facts = _read_header(value) if value else None
        if facts is None:
            self._texts |= bool(value)
        else:
            self._add_image(facts)

    def _add_image(self, facts: Sequence[int | str | None]) -> None:
        if self._image is None:
            self._image = list(facts)
        else:
            self._image = [old if old == new else None for old, new in zip(self._image, facts)]

    def spec(self) -> dict[str, Any]:
        """The entry of this leaf in `features.json`."""
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


def _describe(entry: Any) -> dict[str, Any]:
    if isinstance(entry, _LeafEncoder):
        return entry.spec()
    features = {key: _describe(inner) for key, inner in entry.items()}
    return _feature("features_dict.FeaturesDict", "featuresDict", {"features": features})


def _make_array(value: Any, where: str) -> np.ndarray:
    """A value as an array of numbers, or as an array of objects: bytes and handles."""
    parts = value if isinstance(value, (list, tuple)) else (value,)
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        raise TypeError(
            f"{where} is a masked array, whose mask cannot be saved. Map it to `x.filled(value)`, and save "
            "`np.ma.getmaskarray(x)` under a key of its own."
        )
    if isinstance(value, (bytes, str, Encoded)):
        value = to_objects([value]).reshape(())
    elif isinstance(value, (list, tuple)) and value and all(isinstance(item, (bytes, str, Encoded)) for item in value):
        value = to_objects(value)
    array = np.asarray(value)
    if array.dtype.kind in "biuf":
        return array
    if is_text(array):
        flat = array.ravel().tolist()
        wrong = [item for item in flat if not isinstance(item, (bytes, str, Encoded))]
        if wrong:
            raise TypeError(f"{where} should be numbers, bytes or strings, got {type(wrong[0]).__name__} in it.")
        encoded = [item.encode() if isinstance(item, str) else item for item in flat]
        return to_objects(encoded).reshape(array.shape)
    raise TypeError(f"{where} should be numbers, bytes or strings, got {array.dtype}.")


def _unpack_floats(contents: Sequence[bytes], where: str) -> np.ndarray | None:
    """Frames of other numbers than uint8 and uint16, which no image format stores, as one array. Else None."""
    frames = [unpack_pixels(content) if content.startswith(MAGIC) else None for content in contents]
    kinds = {str(frame.dtype) for frame in frames if frame is not None}
    if kinds <= {"uint8", "uint16"}:
        return None
    shapes = {None if frame is None else frame.shape for frame in frames}
    if len(kinds) > 1 or len(shapes) > 1:
        raise ValueError(f"{where} has frames of {sorted(kinds)} and of the shapes {shapes}, or steps without one.")
    return np.stack([frame for frame in frames if frame is not None])


def encode_image(pixels: np.ndarray, kind: ImageFormat, where: str) -> bytes:
    """Encodes pixels as an image."""
    images = import_package("PIL.Image", "robots", "Encoded images")
    if kind == "jpeg" and (pixels.dtype != np.uint8 or pixels.shape[-1] == 4):
        raise ValueError(f"{where}: {pixels.dtype} of {list(pixels.shape)} cannot be a JPEG image. Choose 'png'.")
    output = io.BytesIO()
    image = images.fromarray(pixels[:, :, 0] if pixels.shape[-1] == 1 else pixels)
    image.save(output, kind, **({"quality": _JPEG_QUALITY} if kind == "jpeg" else {}))
    return output.getvalue()


def _read_header(data: bytes) -> tuple[str, str, int, int, int] | None:
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
