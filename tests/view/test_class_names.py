"""Labels below pictures, and the names of their classes: from each kind of source, and only where they are true."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bushel
from bushel import MapDataset
from bushel._src.display.describe import describe_element
from bushel._src.view.panels import elements as panel
from bushel._src.view.panels.elements import ClassNames, list_names
from bushel._src.view.session import Query, Session
from bushel._src.view.targets import open_session

NAMES = ["cat", "dog", "owl"]
LABELS = [2, 0, 1, 1, 0, 2, 2, 1]


class Pets:
    """Pictures as torchvision's data sets have them: a list of classes, and pairs of image and label."""

    classes = NAMES

    def __len__(self):
        return len(LABELS)

    def __getitem__(self, index):
        return {"image": np.full((16, 16, 3), 20 * index, np.uint8), "label": np.int64(LABELS[index])}


def draw(session, index=0, **query):
    """The description of an element, as the panel answers."""
    answer = panel.routes(session)["read"](Query({"index": str(index)} | {k: str(v) for k, v in query.items()}))
    return {item["key"]: item["value"] for item in answer["element"]["items"]}


def test_a_picture_has_its_label_and_the_name_of_its_class():
    session = Session(MapDataset.source(Pets()))
    for index, label in enumerate(LABELS):
        parts = draw(session, index)
        assert parts["image"]["caption"] == parts["label"]["classes"][0] == f"{label} · {NAMES[label]}"


@pytest.mark.parametrize("stream", [False, True])
def test_a_batch_has_a_label_below_each_picture(stream):
    ds = MapDataset.source(Pets()).seed(3).shuffle().batch(4)
    session = Session(ds.to_iter_dataset() if stream else ds)
    for index in range(2):
        parts = draw(session, index)
        expected = [f"{label} · {NAMES[label]}" for label in ds[index]["label"]]
        assert parts["image"]["captions"] == parts["label"]["classes"] == expected
        assert draw(session, index, row=2)["image"]["caption"] == expected[2]


def test_a_function_that_keeps_the_numbers_keeps_the_names():
    def flip(record):
        return {"image": record["image"][:, ::-1], "label": record["label"]}

    session = Session(MapDataset.source(Pets()).seed(3).shuffle().map(flip).batch(3))
    labels = session.read(-1, 1).element["label"]
    assert draw(session, 1)["image"]["captions"] == [f"{label} · {NAMES[label]}" for label in labels]


@pytest.mark.parametrize("change", [lambda label: (label + 1) % 3, lambda label: label // 2, lambda label: 2 - label])
def test_a_function_that_numbers_classes_anew_gets_no_names(change):
    ds = MapDataset.source(Pets()).map(lambda record: record | {"label": change(record["label"])})
    session = Session(ds.batch(len(LABELS)))
    assert draw(session)["image"]["captions"] == [f"label {change(label)}" for label in LABELS]


def test_labels_of_a_stream_behind_a_filter_have_no_names():
    ds = MapDataset.source(Pets()).to_iter_dataset().filter(lambda record: record["label"] != 1)
    assert draw(Session(ds), 0)["image"]["caption"] == "label 2"


def test_sources_with_different_classes_are_not_confused():
    class Birds(Pets):
        classes = ("owl", "finch", "crow")

    both = MapDataset.concatenate([MapDataset.source(Pets()), MapDataset.source(Birds())])
    assert draw(Session(both), 0)["image"]["caption"] == "label 2"
    same = MapDataset.concatenate([MapDataset.source(Pets()), MapDataset.source(Pets())])
    assert draw(Session(same), 0)["image"]["caption"] == "2 · owl"


def test_hugging_face_features():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=NAMES),
            "tags": datasets.Sequence(datasets.ClassLabel(names=["a", "b"])),
            "number": datasets.Value("int64"),
        }
    )
    rows = {"label": LABELS, "tags": [[0, 1]] * len(LABELS), "number": LABELS}
    stored = datasets.Dataset.from_dict(rows, features=features)
    assert list_names(stored) == {"label": NAMES, "tags": ["a", "b"]}
    parts = draw(Session(MapDataset.source(stored)), 1)
    assert (parts["label"]["classes"], "classes" in parts["number"]) == (["0 · cat"], False)


def test_parquet_files_of_hugging_face(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    features = {"label": {"names": NAMES, "_type": "ClassLabel"}, "x": {"dtype": "int64", "_type": "Value"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = arrow.table({"label": LABELS, "x": LABELS}).replace_schema_metadata(metadata)
    parquet.write_table(table, tmp_path / "train.parquet")
    session = open_session(str(tmp_path))
    assert draw(session, 2)["label"]["classes"] == ["1 · dog"] and "classes" not in draw(session, 2)["x"]


def test_class_names_of_tfds_folders_are_shown(tmp_path):
    zipfile.ZipFile(Path(__file__).parents[1] / "data" / "tfds_mine.zip").extractall(tmp_path)
    source = bushel.sources.TFDSDataSource(tmp_path, split="train")
    assert list_names(source) == {}
    count = 1 + max(int(source[index]["label"]) for index in range(len(source)))
    (tmp_path / "label.labels.txt").write_text("".join(f"class {n}\n" for n in range(count)))
    session = Session(MapDataset.source(source))
    label = int(source[3]["label"])
    assert draw(session, 3)["label"]["classes"] == [f"{label} · class {label}"]


def test_folders_of_images_have_their_names_as_classes(tmp_path):
    for name in ("cat/a.png", "dog/b.png", "dog/c.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (9, 9)).save(tmp_path / name)
    session = open_session(str(tmp_path))
    assert [draw(session, index)["content"]["caption"] for index in range(3)] == ["cat", "dog", "dog"]
    (tmp_path / "flat").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "flat" / "a.png")
    assert draw(open_session(str(tmp_path / "flat")))["content"]["caption"] == ""


def test_a_source_that_fails_to_say_its_classes_is_shown_without_names():
    class Odd(Pets):
        @property
        def classes(self):
            raise RuntimeError("no")

    session = Session(MapDataset.source(Odd()))
    assert ClassNames(session).find(0, 0, session.read(0, 0).element) == {}
    assert draw(session)["image"]["caption"] == "label 2"


def test_what_is_written_below_pictures():
    picture, long = np.zeros((9, 9, 3), np.uint8), "x" * 500
    described = describe_element({"image": picture, "label": long, "caption": "no label", "labels": [1, 2]})
    assert described["items"][0]["value"]["caption"] == "x" * 39 + "…"
    for label in (None, 0.5, np.zeros(3), np.array([[1]]), float("nan")):
        assert describe_element({"image": picture, "label": label})["items"][0]["value"]["caption"] == ""
    out_of_range = describe_element({"image": picture, "label": 9}, classes={"label": NAMES})
    assert out_of_range["items"][0]["value"]["caption"] == "label 9"
    nested = describe_element({"a": {"image": picture, "label": 1}}, classes={"a/label": NAMES})
    assert nested["items"][0]["value"]["items"][0]["value"]["caption"] == "1 · dog"
    rows = describe_element({"video": np.zeros((2, 3, 9, 9, 3), np.uint8), "class_id": np.array([1, 0])})
    assert rows["items"][0]["value"]["captions"] == ["class_id 1", "class_id 0"]


def test_the_page_draws_labels_below_pictures(open_page):
    page = open_page(MapDataset.source(Pets()).batch(4), panel="elements")
    page.wait_for_selector(".strip[data-ready]")
    shown = page.locator(".strip figure .caption").all_inner_texts()
    assert shown == [f"{label} · {NAMES[label]}" for label in LABELS[:4]]
    assert page.locator(".classes span").all_inner_texts() == shown
    page.get_by_label("row").select_option("1")
    page.wait_for_selector(".part.image .caption")
    assert page.locator(".part.image .caption").inner_text() == "0 · cat"
    assert page.locator(".class-name").inner_text() == "cat"
