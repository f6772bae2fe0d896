"""Elements as descriptions: which kind an array is, what is drawn of it, and that nothing is sent whole."""

import base64
import dataclasses
import io
import json
import wave
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from bushel import MapDataset
from bushel._src.display import describe, pictures
from bushel._src.display.describe import describe_element, walk
from bushel._src.display.kinds import find_batch_size, find_entry, take_row
from bushel._src.view.server import to_json

RNG = np.random.default_rng(0)
PICTURE = RNG.integers(0, 256, (32, 40, 3), np.uint8)


def parts(element, **options):
    """The parts of an element by their path. The description is checked to be JSON of bounded size."""
    described = describe_element(element, **options)
    assert len(to_json(described)) < 4_000_000
    return {"/".join(path): part for path, part in walk(described)}


def pixels(url):
    assert url.startswith("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))


def encoded(array, format="PNG"):
    out = io.BytesIO()
    Image.fromarray(array).save(out, format)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("image", PICTURE, "image"),
        ("x", PICTURE, "image"),
        ("x", PICTURE[..., 0], "image"),
        ("x", np.moveaxis(PICTURE, -1, 0), "image"),
        ("rgb", PICTURE / 255, "image"),
        ("x", np.zeros((4, 4, 3), np.uint8), "array"),
        ("x", np.stack([PICTURE] * 3), "frames"),
        ("x", np.zeros((5, 28, 28), np.uint8), "frames"),
        ("x", np.stack([[PICTURE] * 3] * 2), "rows"),
        ("depth", RNG.random((20, 30)), "image"),
        ("x", RNG.random((20, 30)), "array"),
        ("x", RNG.random(7), "array"),
        ("x", RNG.random((4, 5, 6, 7)), "array"),
        ("x", np.zeros((0, 3)), "array"),
        ("input_ids", np.arange(64), "tokens"),
        ("input_ids", np.arange(64.0), "array"),
        ("counts", np.arange(64), "array"),
        ("audio", RNG.random(4000).astype(np.float32), "audio"),
        ("waveform", np.zeros((4000, 2), np.int16), "audio"),
        ("signal", RNG.random(4000), "array"),
        ("x", 3, "scalar"),
        ("x", np.float32(3), "scalar"),
        ("x", np.array(3), "scalar"),
        ("x", True, "scalar"),
        ("x", None, "none"),
        ("x", "text", "text"),
        ("x", np.str_("text"), "text"),
        ("x", b"text", "text"),
        ("x", b"\x00\xff\x80", "bytes"),
        ("x", encoded(PICTURE), "image"),
        ("x", encoded(PICTURE, "JPEG"), "image"),
        ("x", np.array([encoded(PICTURE)] * 3, object), "frames"),
        ("x", np.array(["a", "b"]), "texts"),
        ("x", np.array(["a", 1], object), "texts"),
        ("x", np.array(["2020-01-01"], "datetime64[D]"), "array"),
        ("x", 1 + 2j, "scalar"),
        ("x", jnp.ones((3, 4), jnp.bfloat16), "array"),
        ("x", object(), "scalar"),
        ("x", b"\x89PNG\r\n broken", "failed"),
    ],
)
def test_each_value_is_shown_as_its_kind(name, value, kind):
    (part,) = parts({name: value}).values()
    assert part["kind"] == kind
    assert part["type"]


def test_small_floats_keep_their_names():
    found = parts(
        {"a": jnp.ones((3, 4), jnp.bfloat16), "image": jnp.zeros((8, 8, 3), jnp.bfloat16), "x": jnp.bfloat16(2)}
    )
    assert [part["type"] for part in found.values()] == ["bfloat16[3, 4]", "bfloat16[8, 8, 3]", "bfloat16"]


def test_pixels_of_an_image_are_sent_as_they_are():
    assert np.array_equal(pixels(parts({"image": PICTURE})["image"]["url"]), PICTURE)
    assert np.array_equal(pixels(parts({"x": np.moveaxis(PICTURE, -1, 0)})["x"]["url"]), PICTURE)
    assert np.array_equal(pixels(parts({"x": encoded(PICTURE)})["x"]["url"]), PICTURE)


def test_floats_are_shown_by_their_range():
    floats = parts({"image": PICTURE / np.float32(255)})["image"]
    assert np.array_equal(pixels(floats["url"]), PICTURE) and floats["note"] == "values 0 to 1"
    centred = parts({"image": PICTURE / np.float32(127.5) - 1})["image"]
    assert np.array_equal(pixels(centred["url"]), PICTURE) and centred["note"] == "values -1 to 1"
    wide = parts({"image": np.where(PICTURE > 128, np.nan, 5.0 * PICTURE)})["image"]
    assert "stretched" in wide["note"]


def test_frames_lie_in_one_picture():
    frames = RNG.integers(0, 256, (5, 20, 24, 3), np.uint8)
    sprite = parts({"video": frames})["video"]["sprite"]
    sheet = pixels(sprite["url"])
    for number, frame in enumerate(frames):
        top, left = number // sprite["columns"] * 20, number % sprite["columns"] * 24
        assert np.array_equal(sheet[top : top + 20, left : left + 24], frame)


def test_large_arrays_are_cut():
    huge = {
        "image": np.zeros((6000, 5000, 3), np.uint8),
        "video": np.zeros((500, 200, 200, 3), np.uint8),
        "windows": np.zeros((64, 20, 64, 64, 3), np.uint8),
        "table": np.zeros((3000, 4000), np.float32),
        "row": np.zeros(10**6, np.float32),
        "tokens": np.zeros((64, 10_000), np.int32),
        "audio": np.zeros(10**6, np.float32),
        "text": "a" * 10**6,
        "texts": np.array([str(n) for n in range(10**5)]),
        "list": list(range(10**5)),
        "bytes": bytes(range(256)) * 4000,
        "deep": np.zeros((50, 50, 50, 50)),
    }
    shown = parts(huge)  # checks the size
    assert max(pixels(shown["image"]["url"]).shape) == pictures.IMAGE_EDGE
    assert shown["video"]["total"] == 500 and shown["video"]["sprite"]["count"] == describe.FRAMES
    assert shown["text"]["left_out"] == 10**6 - describe.TEXT
    assert len(shown["row"]["curve"]["x"]) <= pictures.CURVE_POINTS + 1


def test_many_pictures_do_not_make_a_page_without_end(monkeypatch):
    monkeypatch.setattr(describe, "MEDIA_BYTES", 100_000)
    noise = RNG.integers(0, 256, (64, 64, 3), np.uint8)
    shown = parts({str(n): noise for n in range(90)})
    kinds = [part["kind"] for part in shown.values()]
    assert 4 < kinds.count("image") < 10 and kinds.count("bytes") == 90 - kinds.count("image")
    assert len(to_json(shown)) < 1.7 * describe.MEDIA_BYTES


def test_dataclasses_and_named_tuples_are_shown_by_their_parts():
    class Pair(NamedTuple):
        left: int
        right: str

    @dataclasses.dataclass
    class Box:
        inside: np.ndarray

    nested: list = []
    nested.append(nested)
    shown = parts({"pair": Pair(1, "b"), "box": Box(np.arange(3)), 7: [1, (2,)], "fields": np.zeros(3, [("a", int)])})
    assert set(shown) == {"pair/left", "pair/right", "box/inside", "7/0", "7/1/0", "fields/a"}
    describe_element(nested)  # ends
    wide = {str(n): {str(m): m for m in range(99)} for n in range(99)}
    assert len(parts(wide)) <= describe.ENTRIES_IN_ALL


def test_an_object_that_fails_does_not_hide_the_others():
    class Bad:
        def __repr__(self):
            raise RuntimeError("no")

    class Worse(dict):
        def items(self):
            raise RuntimeError("no")

    shown = parts({"bad": Bad(), "worse": Worse(a=1), "good": 1})
    assert shown["good"]["text"] == "1" and shown["worse"]["kind"] == "failed"


def test_masks_are_drawn_over_what_they_mask():
    mask = np.zeros((32, 40), bool)
    mask[:16] = True
    shown = parts({"image": PICTURE, "image_mask": mask, "other": PICTURE})
    drawn = pixels(shown["image"]["url"])
    assert np.array_equal(drawn[:16], PICTURE[:16]) and not np.array_equal(drawn[16:], PICTURE[16:])
    assert shown["image"]["mask"] == "image_mask" and shown["image_mask"]["aside"]
    assert np.array_equal(pixels(shown["other"]["url"]), PICTURE)

    shown = parts({"action": RNG.random((50, 7)), "action_pad_mask": np.arange(50) < 38})
    assert shown["action"]["shaded"] == [[38, 50]]
    heat = pixels(shown["action"]["heat"]["url"])
    assert (heat[38:] == 128).all() and not (heat[:38] == 128).all(axis=-1).any()

    shown = parts({"tokens": np.arange(20), "loss_mask": np.arange(20) >= 5})
    assert shown["tokens"]["rows"][0]["kept"] == [0] * 5 + [1] * 15

    shown = parts({"video": np.stack([PICTURE] * 3), "video_mask": np.array([0, 1, 1])})
    assert shown["video"]["kept"] == [0, 1, 1]

    shown = parts({"x": np.ma.masked_array(np.arange(20.0), np.arange(20) > 15)})
    assert shown["x"]["shaded"] == [[16, 20]]


def test_an_entry_of_pad_mask_dict_is_the_mask_of_its_image():
    shown = parts({"image": np.stack([PICTURE] * 2), "pad_mask_dict": {"image": np.array([False, True])}})
    assert shown["image"]["kept"] == [0, 1] and shown["image"]["mask"] == "pad_mask_dict/image"


def test_an_array_of_one_value_needs_no_plot():
    shown = parts({"x": np.full((50, 7), 3.5), "y": np.zeros(40, bool)})
    assert shown["x"]["constant"] == "3.5" and "heat" not in shown["x"] and shown["y"]["constant"] == "False"


def test_packed_rows_are_shown_with_segments_and_positions():
    ds = MapDataset.source([{"text": np.arange(n) + 10} for n in (5, 9, 4)]).pack([5, 9, 4], {"text": 12})
    row = parts(ds[0])["text"]["rows"][0]
    assert (
        row["segments"] == ds[0]["text_segment_ids"].tolist() and row["positions"] == ds[0]["text_positions"].tolist()
    )

    class Words:
        def decode(self, ids):
            return " ".join(f"w{i}" for i in ids)

    shown = parts(ds[0], tokenizer=Words())
    assert shown["text_segment_ids"]["aside"] and shown["text_positions"]["aside"]
    row = shown["text"]["rows"][0]
    assert row["pieces"][0] == "w10"
    assert [one["text"].split() for one in row["texts"]] == [
        [f"w{token}" for token in ds[0]["text"][ds[0]["text_segment_ids"] == one["segment"]]] for one in row["texts"]
    ]
    assert sum(len(one["text"].split()) for one in row["texts"]) == np.count_nonzero(ds[0]["text_segment_ids"])


def test_a_tokenizer_that_refuses_an_id():
    class Small:
        def decode(self, ids):
            return "".join("abc"[i] for i in ids)

    row = parts({"tokens": np.array([0, 1, 9, 2] * 4)}, tokenizer=Small())["tokens"]["rows"][0]
    assert row["pieces"][:4] == ["a", "b", "⟨9: IndexError⟩", "c"]


def test_sounds_are_wav_files():
    tone = np.sin(np.arange(8000) * 0.1).astype(np.float32)
    shown = parts({"sound": {"array": tone, "sampling_rate": 8000}})["sound/array"]
    with wave.open(io.BytesIO(base64.b64decode(shown["url"].partition(",")[2]))) as file:
        assert (file.getframerate(), file.getnframes(), file.getnchannels()) == (8000, 8000, 1)
        samples = np.frombuffer(file.readframes(8000), "<i2")
    assert np.abs(samples / 32767 - tone).max() < 1e-3 and shown["seconds"] == 1


def test_values_that_json_has_not():
    shown = parts({"x": np.array([np.nan, np.inf, -np.inf] + [1.0] * 9)})
    assert shown["x"]["summary"]["not_finite"] == 3
    assert json.loads(to_json(shown))["x"]["curve"]["y"][:3] == ["nan", "inf", "-inf"]
    parts({"x": np.full(20, np.nan)})
    parts({"x": np.array([1e308, -1e308] * 10)})
    parts({"x": np.array([2**63 - 1, -(2**63)] * 10)})


def test_peaks_of_long_curves_are_kept():
    values = np.zeros(100_000)
    values[77_777] = 5
    assert 5 in pictures.curve(values)["y"]


def test_rows_and_parts_of_a_batch_are_found():
    batch = {"image": np.stack([PICTURE] * 4), "label": np.arange(4), "deep": {"x": np.zeros((4, 2))}}
    assert find_batch_size(batch) == 4 and take_row(batch, 2)["label"] == 2
    assert find_batch_size({"x": np.zeros(4), "y": 3}) is None
    assert find_batch_size({"x": np.zeros(4), "y": np.zeros(5)}) is None
    assert np.array_equal(find_entry(batch, ["image", "3"]), PICTURE)
    for path in (["nothing"], ["image", "4"], ["image", "-1"], ["label", "0", "0"]):
        with pytest.raises((KeyError, IndexError)):
            find_entry(batch, path)


def test_show_in_a_notebook_and_in_a_terminal():
    ds = MapDataset.range(5).map(
        lambda n: {"image": PICTURE, "text": f"<script>{n}</script>", "x": np.arange(20.0), "ids": np.arange(9)}
    )
    shown = ds.show(2)
    html = shown._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;2" in html and "data:image/png" in html and "<svg" in html
    text = str(shown)
    assert "uint8[32, 40, 3]" in text and "<script>2</script>" in text and "element 2" in text
    assert shown.element["text"] == "<script>2</script>"
    assert "\x1b" not in str(MapDataset.source(["\x1b[31mred"]).show(0))


def test_show_reads_a_stream_up_to_the_element():
    stream = MapDataset.range(100).to_iter_dataset()
    assert stream.map(lambda x: x + 1).show(5).element == 6
    assert stream.filter(lambda x: x % 7 == 3).show(2).element == 17
    with pytest.raises(IndexError, match="ends before element 200"):
        stream.filter(lambda x: x > 3).show(200)
