"""An element as data that the page draws: a tree of parts, each with its kind.

| kind | what it is | entries |
| --- | --- | --- |
| dict, list | a container | items: [{key, value}], left_out |
| scalar, none | a number or another small value | text |
| text, texts | a text, or an array of texts | text; texts: [{text, times in a row}]; left_out |
| bytes | bytes that are not text | text (hexadecimal), size |
| image | an image | url, width, height, note, mask, caption |
| frames | several images: a stack, a window of time, a video | sprite, total, mask, rate, captions |
| rows | images of several windows: one `frames` for each row of a batch | items, left_out, captions |
| audio | a sound | url, rate, seconds, curve |
| tokens | rows of tokens | see `describe_tokens` |
| array | any other array | summary, histogram, curve, curves, heat, slices, values, mask, constant |
| failed | a part that cannot be shown | text |

All have `type`: dtype and shape, or the name of the class. Labels whose classes have names have `classes`: number and
name of each. Large arrays are cut.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import trees
from bushel._src.display import kinds, pictures
from bushel._src.display.kinds import open_container
from bushel._src.display.pictures import decode_image, decode_video

_LABEL_NAME = re.compile(
    r"(^|_)(labels?|class(es)?|class_(id|name|label)s?|categor(y|ies)|targets?|y|species|digits?)$", re.IGNORECASE
)
LONGEST = 40
"""How many characters of a label are written below a picture."""


def find_labels(entries: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> list[tuple[str, list[str]]]:
    """Return the labels among the entries of a container, each with its texts: one, or one for each row of a batch.

    >>> find_labels({"image": None, "label": np.array([1, 0])}, {"label": ["cat", "dog"]})
    [('label', ['1 · dog', '0 · cat'])]

    Args:
      entries: the entries by name.
      names: the names of the classes of some entries.
    """
    found = []
    for name, value in entries.items():
        if name in names or _LABEL_NAME.search(name):
            texts = _write_labels(value, names.get(name))
            if texts is not None:
                found.append((name, texts))
    return found


def _write_labels(value: Any, names: Sequence[str] | None) -> list[str] | None:
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iubSUO" and value.size:
        texts = [_write_label(one, names) for one in value.tolist()]
        return None if None in texts else [text for text in texts if text is not None]
    text = _write_label(
        value.item() if isinstance(value, (np.ndarray, np.generic)) and not value.ndim else value, names
    )
    return None if text is None else [text]


def _write_label(value: Any, names: Sequence[str] | None) -> str | None:
    """Return a label as a text: its number with the name of its class, or the text that it is; None for anything
    else.
    """
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        return value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…"
    if not isinstance(value, int):
        return None
    return str(value) if names is None or not 0 <= value < len(names) else f"{value} · {names[value][:LONGEST]}"


def join_captions(labels: Sequence[tuple[str, list[str]]], count: int) -> list[str] | None:
    """Return what is written below each of `count` pictures; None if no entry has a label for each of them.

    >>> join_captions([("label", ["3", "1"])], 2), join_captions([("a_label", ["3"]), ("b_label", ["x"])], 1)
    (['label 3', 'label 1'], ['a_label 3, b_label x'])
    """
    fitting = [(name, texts) for name, texts in labels if len(texts) == count]
    if not fitting:
        return None
    rows = zip(*(texts for _, texts in fitting), strict=True)
    names = [name for name, _ in fitting]
    return [
        ", ".join(_write_pair(name, text, len(names)) for name, text in zip(names, row, strict=True)) for row in rows
    ]


def _write_pair(name: str, text: str, count: int) -> str:
    return f"{name} {text}" if count > 1 or text.lstrip("-").isdecimal() else text


ROWS = 8
"""How many rows are shown."""
TOKENS = 1_024
"""How many tokens of a row are shown."""


def describe_tokens(
    ids: np.ndarray,
    *,
    segments: Any = None,
    positions: Any = None,
    mask: np.ndarray | None = None,
    tokenizer: Any = None,
) -> dict[str, Any]:
    """Return rows of tokens for the page.

    Args:
      ids: [tokens] or [rows, tokens].
      segments: which packed sequence each token belongs to; 0 is padding.
      positions: the position of each token in its sequence.
      mask: False where a token is hidden, for example from the loss.
      tokenizer: an object with `decode(ids)`.
    """

    def as_rows(values: Any) -> np.ndarray | None:
        values = None if values is None else np.asarray(values)
        if values is None or values.shape != ids.shape:
            return None
        return values.reshape(-1, ids.shape[-1])[:ROWS, :TOKENS]

    all_rows = as_rows(ids)
    assert all_rows is not None
    segment_rows, position_rows, mask_rows = as_rows(segments), as_rows(positions), as_rows(mask)
    rows = []
    for number, row in enumerate(all_rows):
        shown: dict[str, Any] = {"ids": row.tolist()}
        if segment_rows is not None:
            shown["segments"] = segment_rows[number].tolist()
        if position_rows is not None:
            shown["positions"] = position_rows[number].tolist()
        if mask_rows is not None:
            shown["kept"] = mask_rows[number].astype(int).tolist()
        if tokenizer is not None:
            shown["pieces"] = [_decode_one(tokenizer, token) for token in row.tolist()]
            shown["texts"] = _decode_segments(tokenizer, row, None if segment_rows is None else segment_rows[number])
        rows.append(shown)
    total = ids.size // ids.shape[-1]
    return {"rows": rows, "rows_left_out": total - len(rows), "left_out": max(0, ids.shape[-1] - TOKENS)}


def _decode_segments(tokenizer: Any, row: np.ndarray, segments: np.ndarray | None) -> list[dict[str, Any]]:
    """Return the text of each segment, in the order in which they begin. Padding (segment 0) is left out."""
    if segments is None:
        return [{"segment": None, "text": decode(tokenizer, row.tolist())}]
    _, first = np.unique(segments, return_index=True)
    present = [int(segments[place]) for place in sorted(first.tolist()) if segments[place] != 0]
    return [{"segment": one, "text": decode(tokenizer, row[segments == one].tolist())} for one in present]


def _decode_one(tokenizer: Any, token: int) -> str:
    text = decode(tokenizer, [token])
    if not text and hasattr(tokenizer, "id_to_token"):  # a special token, which `decode` leaves out
        return tokenizer.id_to_token(token) or ""
    return text


def decode(tokenizer: Any, ids: list[int]) -> str:
    """Return the text of some tokens. A tokenizer refuses ids that it does not know; these are shown as numbers."""
    try:
        return str(tokenizer.decode(ids))
    except Exception as error:  # each tokenizer has errors of its own
        return f"⟨{', '.join(map(str, ids[:4]))}{', …' if len(ids) > 4 else ''}: {type(error).__name__}⟩"


ENTRIES = 100
"""How many entries of a container are shown."""
ENTRIES_IN_ALL = 1_000
"""How many entries of an element are shown, nested ones too in all."""
DEPTH = 12
"""How deep containers may be nested."""
TEXT = 4_000
"""How many characters of a text are shown."""
TEXTS = 50
"""How many texts of an array are shown."""
FRAMES = 32
"""How many images of a stack are shown."""
STACKS = 8
"""How many rows of windows are shown."""
CLASSES = 64
"""How many labels of a batch are written with the names of their classes."""
VALUES = 8
"""How many rows and columns of numbers are shown as numbers."""
CURVES = 16
"""A table with at most so many columns is drawn as curves, too."""
MEDIA_BYTES = 24_000_000
"""How much pictures and sounds of one element may take together."""


def describe_element(
    element: Any,
    *,
    tokenizer: Any = None,
    decoder: Callable[[Any], np.ndarray] | None = None,
    draws: bool = True,
    classes: Mapping[str, Sequence[str]] | None = None,
    caption: str | None = None,
) -> dict[str, Any]:
    """Return what the page draws for an element.

    Args:
      element: any tree.
      tokenizer: an object with `decode(ids)`, for rows of tokens.
      decoder: decodes images that are still in their files: objects with `__bytes__`. By default as other images.
      draws: False leaves out pictures and sounds, for a terminal.
      classes: the names of classes, by the path of the entry with their numbers, such as "label".
      caption: what is written below a picture that has no label, such as the name of its folder.

    >>> describe_element({"label": 3})["items"][0]["value"]
    {'kind': 'scalar', 'type': 'int', 'text': '3'}
    """
    return _Describer(tokenizer, decoder, draws, classes or {}, caption).describe(element, "", {}, 0)


class _Describer:
    """Describes one element. It counts what it has described, so that no element makes a page too large."""

    def __init__(
        self,
        tokenizer: Any,
        decoder: Callable[[Any], np.ndarray] | None,
        draws: bool,
        classes: Mapping[str, Sequence[str]],
        caption: str | None,
    ):
        self._tokenizer, self._draws, self._classes, self._caption = tokenizer, draws, classes, caption
        self._path: list[str] = []
        self._decode = decoder or (lambda content: decode_image(bytes(content)))
        self._entries_left = ENTRIES_IN_ALL
        self._bytes_left = MEDIA_BYTES

    def describe(self, value: Any, name: str, beside: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """Describe a part: `name` is its key, `beside` are the entries of the same container."""
        self._entries_left -= 1
        try:
            opened = open_container(value)
            if opened is not None:
                return self._describe_container(value, *opened, depth)
            return self._describe_leaf(value, name, beside)
        except Exception as error:  # a user's object may raise anything, and the other parts can still be shown
            return {"kind": "failed", "type": type(value).__name__, "text": f"{type(error).__name__}: {error}"}

    def _describe_container(self, value: Any, kind: str, entries: dict[str, Any], depth: int) -> dict[str, Any]:
        shown = {"kind": kind, "type": type(value).__name__, "items": [], "left_out": len(entries)}
        if depth >= DEPTH:
            return shown
        arrays = {name: _as_array(part) for name, part in entries.items()}
        for name, part in itertools.islice(entries.items(), ENTRIES):
            if self._entries_left <= 0:
                break
            self._path.append(name)
            described = self.describe(part, name, arrays if kind == "dict" else {}, depth + 1)
            self._path.pop()
            shown["items"].append({"key": name, "value": described})
        self._add_captions(shown, entries, arrays)
        shown["left_out"] = len(entries) - len(shown["items"])
        drawn = {item["value"].get("mask") for item in shown["items"]}
        for item in shown["items"]:
            # The page folds these up, since they are drawn with what they belong to.
            if item["key"] in drawn or (kind == "dict" and kinds.is_beside_tokens(item["key"], entries)):
                item["value"]["aside"] = True
        return shown

    def _add_captions(self, shown: dict[str, Any], entries: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Write the labels of a container below its pictures, and the names of classes beside their numbers."""
        above = "".join(f"{name}/" for name in self._path)
        classes = {name: self._classes[above + name] for name in arrays if above + name in self._classes}
        labels = find_labels(arrays, classes)
        for item in shown["items"]:
            value, kind = item["value"], item["value"]["kind"]
            if item["key"] in classes and kind in ("scalar", "array"):
                value["classes"] = dict(labels).get(item["key"], [])[:CLASSES]
            if kind == "image":
                captions = join_captions(labels, 1) or ([self._caption] if self._caption else None)
                value["caption"] = captions[0] if captions else ""
            elif kind in ("frames", "rows"):
                value["captions"] = join_captions(labels, len(entries[item["key"]])) or []

    def _describe_leaf(self, value: Any, name: str, beside: Mapping[str, Any]) -> dict[str, Any]:
        given, value = getattr(value, "dtype", None), _as_array(value)
        if value is None:
            return {"kind": "none", "type": "None", "text": "None"}
        if isinstance(value, (bytes, bytearray, np.bytes_)):
            return self._describe_bytes(bytes(value))
        if isinstance(value, str):
            text = str(value)
            return {"kind": "text", "type": "str", "text": text[:TEXT], "left_out": max(0, len(text) - TEXT)}
        if _is_in_file(value) and self._draws:
            return self._draw_image(self._decode(value), None) | {"type": type(value).__name__}
        if isinstance(value, np.ndarray) and value.ndim:
            mask = None
            if isinstance(value, np.ma.MaskedArray):
                mask, value = ("its own mask", ~np.ma.getmaskarray(value)), np.asarray(value.data)
            described = self._describe_array(value, name, beside, mask)
            type_name = (
                f"{given}{list(value.shape)}" if given is not None and given != value.dtype else _name_type(value)
            )
            return {"type": type_name} | described
        value = value[()] if isinstance(value, np.ndarray) else value
        if isinstance(value, (bytes, str)):
            return self._describe_leaf(value, name, beside)
        text = repr(value.item()) if isinstance(value, np.generic) and value.dtype.kind in "biufc" else _repr(value)
        kind = f"{given or value.dtype}" if isinstance(value, np.generic) else type(value).__name__
        return {"kind": "scalar", "type": kind, "text": text[:TEXT]}

    def _describe_bytes(self, content: bytes) -> dict[str, Any]:
        media_type = kinds.find_media_type(content) if self._draws else None
        shown: dict[str, Any] = {"kind": "bytes", "type": f"{len(content):,} bytes", "size": len(content)}
        if media_type is not None and media_type.startswith("image/"):
            described = self._draw_image(decode_image(content), None)
            return described | {"type": f"{media_type}, {len(content):,} bytes"}
        if media_type is not None and media_type.startswith("video/"):
            frames, total, rate = decode_video(content, FRAMES)
            return self._draw_frames(frames, total, None, rate) | {"type": f"{media_type}, {len(content):,} bytes"}
        if media_type is not None and self._spend(len(content) * 4 // 3):
            return shown | {"kind": "audio", "url": pictures.data_url(media_type, content), "type": media_type}
        try:
            text = content[: TEXT * 4].decode()
            if text.isprintable() or all(letter.isprintable() or letter in "\n\r\t" for letter in text):
                return shown | {"kind": "text", "text": text[:TEXT], "left_out": max(0, len(content) - TEXT)}
        except UnicodeDecodeError:
            pass
        return shown | {"text": content[:64].hex(" ")}

    def _describe_array(
        self, value: np.ndarray, name: str, beside: Mapping[str, Any], mask: tuple[str, np.ndarray] | None
    ) -> dict[str, Any]:
        if not value.size:
            return {"kind": "array", "values": "[]", "summary": {}}
        if value.dtype.kind in "SUO":
            return self._describe_objects(value)
        mask = mask or kinds.find_mask(name, value, beside)
        if mask is not None and mask[1].all():  # it hides nothing
            mask = None
        if kinds.is_tokens(name, value, beside, has_tokenizer=self._tokenizer is not None):
            segments, positions = kinds.find_segments(name, beside)
            fits = mask is not None and mask[1].shape == value.shape
            rows = describe_tokens(
                value,
                segments=segments,
                positions=positions,
                mask=mask[1] if mask is not None and fits else None,
                tokenizer=self._tokenizer,
            )
            return {"kind": "tokens", **rows, "mask": mask[0] if mask is not None and fits else None}
        if not self._draws:
            return _describe_numbers(value, mask, draws=False)
        rate = kinds.find_rate(name, value, beside)
        if rate is not None and self._spend(min(len(value), rate * 30) * 4):
            seconds = len(value) / rate
            curve = pictures.curve(value if value.ndim == 1 else value[:, 0])
            url = pictures.data_url("audio/wav", pictures.wav(value, rate))
            return {"kind": "audio", "url": url, "rate": rate, "seconds": seconds, "curve": curve}
        axes = kinds.find_image_axes(name, value)
        if axes is not None:
            return self._describe_images(value, axes, mask)
        return _describe_numbers(value, mask)

    def _describe_objects(self, value: np.ndarray) -> dict[str, Any]:
        """Return an array of texts, of encoded images, or of other objects."""
        flat = value.reshape(-1)
        first = flat[0]
        if self._draws and (_is_in_file(first) or _is_encoded_image(first)):
            # Evenly spread, since this is usually a whole episode.
            numbers = np.unique(np.linspace(0, len(flat) - 1, FRAMES).astype(int)).tolist()
            present = [number for number in numbers if len(flat[number])]
            images = [self._decode(flat[number]) for number in present]
            if images and all(image.shape == images[0].shape for image in images):
                return self._draw_frames(np.stack(images), len(flat), None) | {"numbers": present}
        runs = itertools.groupby(_text_of(part)[:TEXT] for part in flat[: TEXTS * 20].tolist())
        texts = [{"text": text, "times": len(list(run))} for text, run in itertools.islice(runs, TEXTS)]
        return {"kind": "texts", "texts": texts, "left_out": len(flat) - sum(one["times"] for one in texts)}

    def _describe_images(self, value: np.ndarray, axes: str, mask: tuple[str, np.ndarray] | None) -> dict[str, Any]:
        inner = len(axes)
        if axes == "CHW":
            value = np.moveaxis(value, -3, -1)
        stack = value.ndim - inner
        if stack == 0:
            return self._draw_image(value, mask)
        if stack == 1:
            return self._draw_frames(value[:FRAMES], len(value), _cut_mask(mask, FRAMES))
        rows = value.reshape(-1, *value.shape[stack - 1 :])
        row_masks = [None] * len(rows)
        if mask is not None and mask[1].ndim >= stack:
            row_masks = [(mask[0], part) for part in mask[1].reshape(-1, *mask[1].shape[stack - 1 :])[:STACKS]]
        items = [
            {"key": str(n), "value": self._draw_frames(row[:FRAMES], len(row), _cut_mask(row_mask, FRAMES))}
            for n, (row, row_mask) in enumerate(zip(rows[:STACKS], row_masks[:STACKS], strict=True))
        ]
        return {"kind": "rows", "items": items, "left_out": len(rows) - len(items)}

    def _draw_image(self, value: np.ndarray, mask: tuple[str, np.ndarray] | None) -> dict[str, Any]:
        height, width = value.shape[:2]
        step = max(1, max(height, width) // 2048)  # before the values are converted, which takes memory
        pixels, note = pictures.to_pixels(value[::step, ::step])
        drawn = mask is not None and mask[1].shape == (height, width)
        if drawn and mask is not None:
            pixels = pictures.draw_mask(pixels, mask[1][::step, ::step])
        if not self._spend(min(pixels.nbytes, pictures.IMAGE_EDGE**2 * 4)):
            return {"kind": "bytes", "text": "This element has more pictures than fit one page.", "size": value.nbytes}
        shown = {"kind": "image", "url": pictures.png_url(pixels), "width": width, "height": height, "note": note}
        return shown | {"mask": mask[0] if drawn and mask is not None else None}

    def _draw_frames(
        self, frames: np.ndarray, total: int, mask: tuple[str, np.ndarray] | None, rate: float | None = None
    ) -> dict[str, Any]:
        if max(frames.shape[1:3]) > 640:  # before the values are converted
            step = max(frames.shape[1:3]) // 320
            frames = frames[:, ::step, ::step]
            mask = None if mask is None or mask[1].ndim > 1 else mask
        pixels, note = pictures.to_pixels(frames)
        kept = None
        if mask is not None and mask[1].shape == pixels.shape[:1]:
            kept = mask[1].astype(int).tolist()
        elif mask is not None and mask[1].shape == pixels.shape[:3]:
            pixels = np.stack([pictures.draw_mask(*pair) for pair in zip(pixels, mask[1], strict=True)])
        if not self._spend(min(pixels.nbytes, len(pixels) * 160 * 160 * 4)):
            return {"kind": "bytes", "text": "This element has more pictures than fit one page.", "size": frames.nbytes}
        shown = {
            "kind": "frames",
            "sprite": pictures.sprite(pixels),
            "total": total,
            "note": note,
            "rate": rate or 10.0,
        }
        return shown | {"kept": kept, "mask": None if mask is None else mask[0]}

    def _spend(self, size: int) -> bool:
        """Return whether pictures and sounds of this size still fit the page."""
        self._bytes_left -= size
        return self._bytes_left >= 0


def _cut_mask(mask: tuple[str, np.ndarray] | None, count: int) -> tuple[str, np.ndarray] | None:
    return None if mask is None else (mask[0], mask[1][:count])


def _describe_numbers(value: np.ndarray, mask: tuple[str, np.ndarray] | None, *, draws: bool = True) -> dict[str, Any]:
    """Return an array of numbers: figures of it, and its values as far as they fit."""
    shown: dict[str, Any] = {
        "kind": "array",
        "values": _format_values(value),
        "mask": None if mask is None else mask[0],
    }
    if value.dtype == bool:
        shown["share_true"] = float(pictures.take_sample(value).mean())
    else:
        shown["summary"] = pictures.summarize(value)
    if value.dtype.kind not in "iufb" or value.size < VALUES:
        return shown
    if value.size <= pictures.SAMPLE and bool((value == value.reshape(-1)[0]).all()):
        return shown | {"constant": str(value.reshape(-1)[0]), "size": value.size}
    if value.dtype != bool:
        shown["histogram"] = pictures.histogram(value)
    if not draws:
        return shown
    hidden = None if mask is None else mask[1]
    if hidden is not None and hidden.ndim == 1:
        shown["shaded"] = find_runs(~hidden)
    if value.ndim == 1 and value.dtype == bool:
        shown["heat"] = pictures.heat_map(value[None], None if hidden is None else hidden[None])
    elif value.ndim == 1:
        shown["curve"] = pictures.curve(value)
    elif value.ndim == 2:
        if value.shape[0] >= VALUES and value.shape[1] <= CURVES and value.dtype.kind == "f":
            shown["curves"] = _describe_curves(value)
        shown["heat"] = pictures.heat_map(value, None if hidden is None else _widen(hidden, value.shape))
    else:
        tables = value.reshape(-1, *value.shape[-2:])
        masks = None if hidden is None else _widen(hidden, value.shape).reshape(tables.shape)
        shown["slices"] = [
            {
                "label": f"[{', '.join(map(str, np.unravel_index(n, value.shape[:-2])))}]",
                **pictures.heat_map(table, None if masks is None else masks[n], 128),
            }
            for n, table in enumerate(tables[:4])
        ]
        shown["slices_left_out"] = len(tables) - len(shown["slices"])
    return shown


def _describe_curves(value: np.ndarray) -> dict[str, Any]:
    """Return the columns of a table as curves over its rows; of a long table every n-th row."""
    step = -(-len(value) // pictures.CURVE_POINTS)
    some = value[::step].astype(np.float64)
    series = [{"label": str(column), "y": some[:, column].tolist()} for column in range(value.shape[1])]
    return {"x": list(range(0, len(value), step)), "series": series}


def _widen(mask: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a mask of the first axes, as one of all axes."""
    return np.broadcast_to(mask.reshape(mask.shape + (1,) * (len(shape) - mask.ndim)), shape)


def find_runs(flags: np.ndarray) -> list[list[int]]:
    """Return the stretches [first, after the last] where flags are True.

    >>> find_runs(np.array([False, True, True, False, True]))
    [[1, 3], [4, 5]]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return edges.reshape(-1, 2).tolist()[:100]


def _format_values(value: np.ndarray) -> str:
    """Return the first values, as NumPy writes them."""
    corner = value[tuple(slice(0, VALUES if axis < value.ndim - 1 else 2 * VALUES) for axis in range(value.ndim))]
    while corner.ndim > 2:
        corner = corner[0]
    text = np.array2string(corner, threshold=corner.size + 1, precision=4, suppress_small=True, max_line_width=110)
    return text + ("" if corner.size == value.size else " …")


def _name_type(value: np.ndarray) -> str:
    """Return the dtype and shape of an array; "str" and "bytes" for arrays of texts."""
    name = {"U": "str", "S": "bytes"}.get(value.dtype.kind)
    return trees.describe(value) if name is None else f"{name}{list(value.shape)}"


def _as_array(value: Any) -> Any:
    """Return arrays of other libraries (JAX, PyTorch) as arrays of NumPy, and small floats as float32."""
    if type(value).__module__ == "builtins":
        return value
    if not isinstance(value, (np.ndarray, np.generic)) and hasattr(value, "__array__") and hasattr(value, "shape"):
        try:
            value = np.asarray(value)
        except Exception:  # keys of jax.random, tensors on a device: they are shown by their repr
            return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind == "V" and value.dtype.names is None:
        try:
            return value.astype(np.float32)  # bfloat16 and its kin
        except (TypeError, ValueError):
            return value
    return value


def _is_in_file(value: Any) -> bool:
    """Return whether a value is a handle of an image that is still in its file: `bytes(value)` reads it."""
    if isinstance(value, (bytes, bytearray, np.ndarray, np.generic, type)):
        return False
    return hasattr(value, "__bytes__") and hasattr(value, "__len__")


def _is_encoded_image(value: Any) -> bool:
    return isinstance(value, bytes) and (kinds.find_media_type(value) or "").startswith("image/")


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"({type(value).__name__}: its repr raises {type(error).__name__})"


def _text_of(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else _repr(value)


def walk(part: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterable[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield the parts of a description that are not containers, each with its path."""
    if part["kind"] in ("dict", "list"):
        for item in part["items"]:
            yield from walk(item["value"], (*path, item["key"]))
    else:
        yield path, part
