"""What the parts of an element are: found by path and row, and judged by name, dtype, shape and the entries beside."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import trees


def open_container(value: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the kind of a container ("dict" or "list") and its entries by name; None for a leaf.

    >>> open_container((1, 2))
    ('list', {'0': 1, '1': 2})
    """
    if isinstance(value, Mapping):
        names = [key if isinstance(key, str) else repr(key) for key in value]
        if len(set(names)) < len(names):  # such as 1 and "1"
            names = [repr(key) for key in value]
        return "dict", dict(zip(names, [entry for _, entry in value.items()], strict=True))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "dict", dict(zip(getattr(value, "_fields"), value, strict=True))  # noqa: B009
    if isinstance(value, (list, tuple)):
        return "list", {str(number): entry for number, entry in enumerate(value)}
    if isinstance(value, np.ndarray) and value.dtype.names:
        return "dict", {name: value[name] for name in value.dtype.names}
    if isinstance(value, (np.ndarray, np.generic, str, bytes, bytearray)) or hasattr(value, "__array__"):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "dict", {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    children = trees.children(value) if value is not None else None
    if children is not None:
        return "list", {str(number): entry for number, entry in enumerate(children[0])}
    return None


def find_entry(element: Any, path: Sequence[str]) -> Any:
    """Return the entry of an element at a path of names; numbers are positions in arrays and lists. Raise KeyError."""
    for name in path:
        opened = open_container(element)
        if opened is not None:
            element = opened[1][name]
        elif np.ndim(element) and name.isdigit() and int(name) < len(element):
            element = element[int(name)]
        else:
            raise KeyError(name)
    return element


def find_batch_size(element: Any) -> int | None:
    """Return how many rows a batch has: the length of the first axis, if all arrays agree; None for other elements."""
    sizes: collections.Counter[int] = collections.Counter()
    for leaf in trees.leaves(element):
        shape = getattr(leaf, "shape", None)
        if not shape:
            return None
        sizes[shape[0]] += 1
    return next(iter(sizes)) if len(sizes) == 1 else None


def take_row(element: Any, row: int) -> Any:
    """Return one row of a batch, as a tree of the same form."""
    return trees.map_leaves(lambda leaf: leaf[row], element)


_SEGMENTS = ("_segment_ids", "_segmentation", "_segments")
_POSITIONS = ("_positions", "_position")
_RATES = ("sampling_rate", "sample_rate", "audio_rate", "rate", "sr")

_TOKEN_NAME = re.compile(r"(^|[_/])(tokens?|token_ids|input_ids|ids|inputs?|targets?|labels|text_ids)$")
_AUDIO_NAME = re.compile(r"audio|wave|speech|sound", re.IGNORECASE)
_IMAGE_NAME = re.compile(r"image|img|rgb|pixel|frame|video|camera|photo|depth", re.IGNORECASE)
_MASK_NAME = re.compile(r"(^|_)(pad_)?mask(_|$)|^is_valid$|_valid$")

_SMALLEST_IMAGE = 8  # pixels: an array [4, 4, 3] is a table of numbers more often than an image


def is_mask(name: str, value: Any) -> bool:
    """Return whether an entry is a mask: an array of bools, or of 0 and 1 with a name that says so."""
    if not isinstance(value, np.ndarray) or value.ndim == 0 or not value.size:
        return False
    if value.dtype == bool:
        return True
    return bool(_MASK_NAME.search(name)) and value.dtype.kind in "iuf" and bool(np.isin(value, (0, 1)).all())


def find_mask(name: str, value: np.ndarray, beside: Mapping[str, Any]) -> tuple[str, np.ndarray] | None:
    """Return the mask of an array among the entries beside it: its name, and the mask as bools; None if there is none.

    A mask has the first axes of the array, and a name with "mask" in it. `action_pad_mask` belongs to `action`. A mask
    with no other word in its name ("mask", "pad_mask", "attention_mask") belongs to every array that it fits.
    """
    paired = beside.get("pad_mask_dict")  # Octo's masks: a dict with a mask for each entry
    if isinstance(paired, Mapping) and isinstance(paired.get(name), np.ndarray):
        mask = paired[name]
        if mask.dtype == bool and mask.ndim and mask.shape == value.shape[: mask.ndim]:
            return f"pad_mask_dict/{name}", mask
    best: tuple[int, str] | None = None
    for other, candidate in beside.items():
        if other == name or "mask" not in other or not is_mask(other, candidate) or is_mask(name, value):
            continue
        if candidate.ndim > value.ndim or candidate.shape != value.shape[: candidate.ndim]:
            continue
        rest = re.sub(r"(pad|padding|attention|loss|valid|timestep)?_?mask", "", other).strip("_")
        if rest and rest != name:
            continue
        score = 2 * bool(rest) + candidate.ndim
        if best is None or score > best[0]:
            best = score, other
    return None if best is None else (best[1], beside[best[1]].astype(bool))


def find_segments(name: str, beside: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the segment ids and positions of packed tokens, from the entries beside them; None where there are
    none.
    """

    def look(suffixes: tuple[str, ...]) -> Any:
        for suffix in suffixes:
            for key in (name + suffix, suffix[1:]):
                if key in beside and key != name:
                    return beside[key]
        return None

    return look(_SEGMENTS), look(_POSITIONS)


def is_beside_tokens(name: str, beside: Mapping[str, Any]) -> bool:
    """Return whether an entry holds the segment ids or positions of other entries, which are drawn with those."""
    for suffix in (*_SEGMENTS, *_POSITIONS):
        if name == suffix[1:] or (name.endswith(suffix) and name[: -len(suffix)] in beside):
            return True
    return False


def is_tokens(name: str, value: np.ndarray, beside: Mapping[str, Any], *, has_tokenizer: bool) -> bool:
    """Return whether an array is a row of tokens, or several rows."""
    if value.dtype.kind not in "iu" or value.ndim not in (1, 2) or not value.size or is_beside_tokens(name, beside):
        return False
    segments, _ = find_segments(name, beside)
    if getattr(segments, "shape", None) == value.shape:
        return True
    if is_image(name, value) or is_mask(name, value):
        return False
    return value.shape[-1] >= 8 and (has_tokenizer or bool(_TOKEN_NAME.search(name)))


def find_rate(name: str, value: np.ndarray, beside: Mapping[str, Any]) -> int | None:
    """Return the sampling rate of a sound, in samples per second; None if the array is not a sound."""
    rates = [beside[key] for key in _RATES if key in beside]
    rate = next((int(r) for r in rates if np.ndim(r) == 0 and np.issubdtype(np.asarray(r).dtype, np.number)), 0)
    short = value.ndim == 1 or (value.ndim == 2 and value.shape[1] <= 2)
    if not short or value.dtype.kind not in "fiu" or value.shape[0] < 256:
        return None
    if _AUDIO_NAME.search(name) or (name == "array" and rate):
        return rate if 1_000 <= rate <= 400_000 else 16_000
    return None


def is_image(name: str, value: np.ndarray) -> bool:
    """Return whether the last axes of an array are those of an image."""
    return find_image_axes(name, value) is not None


def find_image_axes(name: str, value: np.ndarray) -> str | None:
    """Return how the last axes of an array form an image: "HWC", "CHW" or "HW"; None if they do not."""
    if value.ndim < 2 or not value.size or value.dtype.kind not in "uifb":
        return None
    named = bool(_IMAGE_NAME.search(name))
    shape, wide = value.shape, _SMALLEST_IMAGE
    likely = value.dtype == np.uint8 or (named and value.dtype.kind in "fiub")
    if value.ndim >= 3 and shape[-1] in (1, 3, 4) and min(shape[-3:-1]) >= wide:
        return "HWC" if likely or (value.dtype.kind == "f" and min(shape[-3:-1]) >= 16) else None
    if value.ndim >= 3 and shape[-3] in (1, 3) and min(shape[-2:]) >= wide and (likely or min(shape[-2:]) >= 32):
        return "CHW"
    if min(shape[-2:]) >= wide and (value.dtype == np.uint8 or named):
        return "HW"
    return None


_MAGIC = {
    b"\x89PNG\r\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"fLaC": "audio/flac",
    b"OggS": "audio/ogg",
    b"ID3": "audio/mpeg",
}


def find_media_type(content: bytes) -> str | None:
    """The media type of an encoded image, sound or video, by its first bytes; None for other bytes.

    >>> find_media_type(b"\\xff\\xd8\\xff\\xe0")
    'image/jpeg'
    """
    for start, kind in _MAGIC.items():
        if content.startswith(start):
            return kind
    if content[:4] == b"RIFF":
        return {b"WAVE": "audio/wav", b"WEBP": "image/webp"}.get(content[8:12])
    if content[4:8] == b"ftyp":
        return "video/mp4"
    return None
