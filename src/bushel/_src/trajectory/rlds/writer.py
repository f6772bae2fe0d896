"""Writes RLDS data sets as TFDS does: episodes as records, `features.json` and `dataset_info.json`.

`dataset_info.json` is written last: without it, no reader recognizes the folder as a data set.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Literal

import numpy as np

from bushel._src.base import checks
from bushel._src.base.errors import writing
from bushel._src.base.hints import explains_arguments
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import public
from bushel._src.base.shown_text import Progress, Written
from bushel._src.sources import folders
from bushel._src.sources.folders import Folder
from bushel._src.sources.paths import Options, Path, normalize_path
from bushel._src.sources.protocol_buffers import encode_example
from bushel._src.sources.record_writers import ArrayRecordWriter, TFRecordWriter
from bushel._src.trajectory.data_utils import flatten_tree, is_text, nest_leaves, to_objects
from bushel._src.trajectory.encoded_images import Encoded, read_all
from bushel._src.trajectory.pixels import MAGIC, unpack_pixels
from bushel._src.trajectory.rlds.dataset_folder import is_version

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
        """Return the dtypes and shapes of all leaves so far, as plain data for JSON."""
        return [[list(keys), *leaf.facts()] for keys, leaf in self._leaves.items()]

    def restore(self, facts: list[Any]) -> None:
        """Restore what `facts` has returned, so that more episodes can be added to those written before."""
        self._leaves = {tuple(keys): _LeafEncoder(tuple(keys)) for keys, *_ in facts}
        for keys, *known in facts:
            self._leaves[tuple(keys)].restore(*known)

    def merge(self, facts: list[Any]) -> None:
        """Add what another encoder, of other episodes of the same data set, has found out (`facts`)."""
        other = EpisodeEncoder("png")
        other.restore(facts)
        if other._leaves.keys() != self._leaves.keys():
            raise ValueError("The files have episodes with different leaves.")
        for keys, leaf in other._leaves.items():
            self._leaves[keys].merge(leaf)

    def encode(self, episode: Mapping[str, Any], where: str) -> bytes:
        """Return an episode as a `tf.train.Example`."""
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
        """Encode arrays that are images, and read handles of images. Other arrays stay as they are."""
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
        """Return a frame that its file holds as an array of pixels, encoded. Other images stay as they are."""
        if not content.startswith(MAGIC):
            return content
        pixels = unpack_pixels(content)
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        return encode_image(pixels, self._choose_format(keys) if pixels.dtype == np.uint8 else "png", where)

    def features(self) -> dict[str, Any]:
        """Return the content of `features.json`."""
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
        """Return the entry of this leaf in `features.json`."""
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
    """Return a value as an array of numbers, or as an array of objects: bytes and handles."""
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
    """Return frames of other numbers than uint8 and uint16, which no image format stores, as one array. Else None."""
    frames = [unpack_pixels(content) if content.startswith(MAGIC) else None for content in contents]
    kinds = {str(frame.dtype) for frame in frames if frame is not None}
    if kinds <= {"uint8", "uint16"}:
        return None
    shapes = {None if frame is None else frame.shape for frame in frames}
    if len(kinds) > 1 or len(shapes) > 1:
        raise ValueError(f"{where} has frames of {sorted(kinds)} and of the shapes {shapes}, or steps without one.")
    return np.stack([frame for frame in frames if frame is not None])


def encode_image(pixels: np.ndarray, kind: ImageFormat, where: str) -> bytes:
    """Encode pixels as an image."""
    images = import_package("PIL.Image", "robots", "Encoded images")
    if kind == "jpeg" and (pixels.dtype != np.uint8 or pixels.shape[-1] == 4):
        raise ValueError(f"{where}: {pixels.dtype} of {list(pixels.shape)} cannot be a JPEG image. Choose 'png'.")
    output = io.BytesIO()
    image = images.fromarray(pixels[:, :, 0] if pixels.shape[-1] == 1 else pixels)
    image.save(output, kind, **({"quality": _JPEG_QUALITY} if kind == "jpeg" else {}))
    return output.getvalue()


def _read_header(data: bytes) -> tuple[str, str, int, int, int] | None:
    """Return format, dtype, height, width and channels of a PNG or JPEG image, by its header; None for anything
    else.
    """
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


_WRITERS: dict[str, type[ArrayRecordWriter] | type[TFRecordWriter]] = {
    "tfrecord": TFRecordWriter,
    "array_record": ArrayRecordWriter,
}
FEATURES, INFO = "features.json", "dataset_info.json"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


@public("bushel.trajectory")
@explains_arguments('Write `write_rlds({"train": episodes}, name="arm", data_dir="data")`.')
def write_rlds(
    splits: Mapping[str, Iterable[Mapping[str, Any]]],
    *,
    name: str,
    data_dir: Path,
    version: str = "1.0.0",
    shards: int = 1,
    file_format: Literal["tfrecord", "array_record"] = "tfrecord",
    image_format: ImageFormat | Mapping[str, ImageFormat] = "png",
    storage_options: Options | None = None,
) -> Written:
    """Write episodes as an RLDS data set that `RLDSBuilder` and TFDS read.

    An episode is `{"steps": tree, "episode_metadata": tree}`, and may have more entries. The arrays in `steps` have a
    leading axis of steps. All episodes have the same leaves. Numbers are stored as TFDS stores them: float64 with the
    precision of float32. uint8 arrays of height x width x (1, 3 or 4) and uint16 arrays of height x width x 1 are
    encoded as images. Images that are encoded already (bytes, or handles of images in files) are not changed; other
    bytes and strings are texts.

    A local folder gets its name when it is complete. In a store, `dataset_info.json` is written last; without it the
    other files cannot be opened. If writing fails, the files are removed. Files that a killed process has left are
    removed when the same data set is written again. Let only one process write to an address: a store has no locks.

    Args:
      splits: the episodes of each split. With several shards, a split must have a length.
      name: the name of the data set: letters, digits and underscores.
      data_dir: a local folder, or an address such as "s3://bucket/data". The data set is written to
        data_dir/name/version. A file for a store is first written to the folder for temporary files, which needs room
        for one shard.
      version: three numbers, such as "1.0.0".
      shards: the number of files for each split, with consecutive episodes; at most the number of episodes.
      file_format: "tfrecord", from which single frames can be read, or "array_record", from which only whole episodes
        can be read, and which needs the package array_record.
      image_format: "png" or "jpeg", for all arrays that are images, or for each of them ("observation/image").
      storage_options: options of the store that holds data_dir.

    >>> import tempfile
    >>> from bushel.trajectory import RLDSBuilder
    >>> episode = {"steps": {"action": np.zeros((5, 2), np.float32)}, "episode_metadata": {"success": True}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_rlds({"train": [episode, episode]}, name="mine", data_dir=folder)
    ...     RLDSBuilder("mine", folder)
    RLDSBuilder(mine 1.0.0; train: 2)
    """
    _check(name, splits, version, file_format)
    shards, columns = checks.positive(shards, "shards"), EpisodeEncoder(image_format)
    folder = folders.open_folder(folders.join_path(normalize_path(data_dir), f"{name}/{version}"), storage_options)

    def belongs(file: str) -> bool:
        shard = rf"{name}-\w+\.({'|'.join(_WRITERS)})-\d+-of-\d+"
        return file in (FEATURES, INFO) or re.fullmatch(shard, file) is not None

    with folder.filling(INFO, belongs) as filled:
        entries = [
            _written(filled, name, split, episodes, shards, file_format, columns) for split, episodes in splits.items()
        ]
        write_info(filled, columns, {"fileFormat": file_format, "name": name, "splits": entries, "version": version})
    files = tuple(map(folder.path, filter(belongs, folder.names())))
    return Written(folder.address, files, sum(int(count) for entry in entries for count in entry["shardLengths"]))


def write_info(folder: Folder, columns: EpisodeEncoder, info: Mapping[str, Any]) -> None:
    """Write the two files that make a folder of records a data set."""
    for file, content in ((FEATURES, columns.features()), (INFO, info)):
        folder.write(file, json.dumps(content, indent=2).encode())


def _check(name: str, splits: Mapping[str, Any], version: str, file_format: str) -> None:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ValueError(f"The name of a data set may have letters, digits and underscores, got {name!r}.")
    if not splits:
        raise ValueError("splits is empty: pass episodes as {'train': [...]}.")
    for split in splits:
        if not re.fullmatch(r"\w+", split) or split == "all":
            raise ValueError(
                f"The name of a split may have letters, digits and underscores, and must not be 'all', got {split!r}."
            )
    if not is_version(version):
        raise ValueError(f"version must be three numbers such as '1.0.0', got {version!r}.")
    checks.choice(file_format, _WRITERS, "file_format")


def _written(
    folder: Folder,
    name: str,
    split: str,
    episodes: Iterable[Mapping[str, Any]],
    shards: int,
    file_format: str,
    columns: EpisodeEncoder,
) -> dict[str, Any]:
    """Write the files of a split. Return its entry in `dataset_info.json`."""
    total = len(episodes) if isinstance(episodes, Sized) else None
    if total is None and shards > 1:
        raise ValueError(
            f"To write {shards} shards of consecutive episodes, the number of episodes must be known. Pass the split "
            f"{split!r} as a list, or as another object with a length, or pass shards=1."
        )
    shards = shards if total is None else min(shards, max(total, 1))
    ends = [] if total is None else np.linspace(0, total, shards + 1).astype(int)[1:-1].tolist()
    progress = Progress(f"writing {name}/{split}", total, unit="episodes")
    left = enumerate(episodes)
    counts, size = [], 0
    for shard, end in enumerate([*ends, None]):
        file = f"{name}-{split}.{file_format}-{shard:05d}-of-{shards:05d}"
        with folder.new_file(file) as path, _opened(path, folder.shown(file), file_format) as write:
            counts.append(0)
            for number, episode in left if end is None else itertools.islice(left, end - sum(counts)):
                record = columns.encode(episode, f"episode {number} of {split!r}")
                write(record)
                counts[-1] += 1
                size += len(record)
                progress.show(number + 1)
    progress.end()
    if not sum(counts):
        raise ValueError(f"The split {split!r} has no episodes. Leave it out.")
    return split_entry(split, _TEMPLATE, counts, size)


def split_entry(split: str, template: str, counts: Iterable[int], size_bytes: int) -> dict[str, Any]:
    """Return the entry of a split in `dataset_info.json`."""
    lengths = [str(count) for count in counts]
    return {"filepathTemplate": template, "name": split, "numBytes": str(size_bytes), "shardLengths": lengths}


@contextlib.contextmanager
def _opened(path: str, shown: str, file_format: str) -> Iterator[Callable[[bytes], None]]:
    """A new file of records, as a function that writes a record."""
    with writing(shown):
        writer = _WRITERS[file_format](path, compress=False)

    def write(record: bytes) -> None:
        with writing(shown):
            writer.write(record)

    try:
        yield write
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is reported, not one of the clean-up
            writer.close()
        raise
    with writing(shown):
        writer.close()
