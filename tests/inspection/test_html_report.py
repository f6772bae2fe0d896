"""`bushel report`: one file that Chromium shows from disk, without any request, and in which data are only text."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.browser import open_chromium
from PIL import Image

import bushel
from bushel._src import cli
from bushel._src.inspection.facts import EntryFacts, Facts, Histogram
from bushel._src.inspection.html_report import build_page
from bushel._src.reporting.report_server import History


@pytest.fixture(scope="module")
def browser():
    with open_chromium() as chromium:
        yield chromium


@pytest.fixture
def open_file(browser):
    """Opens a file of this machine. The test fails if the page asks for anything, or if a script fails."""
    context = browser.new_context(offline=True)
    problems, requests = [], []

    def open(path):
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.goto(path.as_uri())
        return page

    yield open
    context.close()
    assert problems == [] and all(
        url.startswith("data:image/") or (url.startswith("file://") and url.endswith(".html")) for url in requests
    )


def test_a_data_set_with_statistics(open_file, written, tmp_path, capsys):
    path = tmp_path / "arm.html"
    assert cli.main(["report", str(written / "npz"), str(path), "--stats", "--quiet"]) == 0
    assert capsys.readouterr().out.startswith(f"{path}: ")
    page = open_file(path)
    text = page.inner_text("body")
    assert "npz episodes" in text and "steps of an episode" in text and "Statistics" in text
    assert page.locator("figure canvas").count() == 2  # the splits, and the lengths of episodes
    box = page.locator("figure canvas").first.bounding_box()
    assert box["width"] > 100 and box["height"] > 50
    drawn = "c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size"
    assert page.locator("figure canvas").first.evaluate(drawn) > 5  # not an empty picture


PETS = """
import numpy as np, bushel

class Pets:
    classes = ["cat", "<b>dog</b>"]
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return {"image": np.full((300, 400, 3), 5 * index, np.uint8), "label": np.int64(index % 2)}

def check(record):
    if record["image"][0, 0, 0] == 0:
        raise ValueError("black")
    return record

single = bushel.MapDataset.source(Pets()).map(check)
batched = bushel.MapDataset.source(Pets()).batch(4)
numbers = bushel.MapDataset.range(5)
"""


@pytest.mark.parametrize(
    ("name", "captions"),
    [
        ("single", [f"{n}: {n % 2} · {('cat', '<b>dog</b>')[n % 2]}" for n in (5, 11, 16, 22, 27, 33, 39)]),
        ("batched", [f"0[{n}]: {n % 2} · {('cat', '<b>dog</b>')[n % 2]}" for n in range(4)]),
        ("numbers", []),
    ],
)
def test_a_report_shows_pictures_of_some_elements(open_file, tmp_path, monkeypatch, name, captions):
    (tmp_path / "pets.py").write_text(PETS)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", f"pets.py:{name}", "r.html"]) == 0
    page = open_file(tmp_path / "r.html")
    assert page.locator(".pictures figcaption").all_inner_texts() == captions
    sizes = page.eval_on_selector_all(".pictures img", "all => all.map((img) => [img.naturalWidth, img.naturalHeight])")
    assert sizes == [[224, 168]] * len(captions)
    assert (tmp_path / "r.html").stat().st_size < 400_000
    assert cli.main(["report", f"pets.py:{name}", "none.html", "--pictures", "0"]) == 0
    assert "Some elements" not in (tmp_path / "none.html").read_text()


def test_a_folder_of_images_and_damaged_ones(open_file, tmp_path):
    for name in ("cat/a.png", "dog/b.jpg"):
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (200, 0, 0)).save(tmp_path / "pets" / name)
    (tmp_path / "pets" / "dog" / "c.png").write_bytes(b"\x89PNG\r\n damaged")
    assert cli.main(["report", str(tmp_path / "pets"), str(tmp_path / "r.html")]) == 0
    page = open_file(tmp_path / "r.html")
    assert page.locator(".pictures figcaption").all_inner_texts() == ["0: cat", "1: dog"]


def test_episodes_of_robots_are_strips(open_file, tmp_path):
    (tmp_path / "arm").mkdir()
    episode = {"action": np.zeros((5, 2)), "front": np.zeros((5, 24, 32, 3), np.uint8)}
    np.savez(tmp_path / "arm" / "0.npz", **episode)
    assert cli.main(["report", str(tmp_path / "arm"), str(tmp_path / "r.html")]) == 0
    page = open_file(tmp_path / "r.html")
    found = page.locator(".pictures .strip figcaption").all_inner_texts()
    assert found == ["0: observation/front, 5 of 5 images"]


def test_a_measured_pipeline(open_file, tmp_path, monkeypatch, capsys):
    (tmp_path / "measured.py").write_text(
        "import bushel\nds = bushel.MapDataset.range(10**6).map(lambda x: sum(range(500))).batch(4)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "measured.py:ds", "--seconds", "0.2", "--workers", "0", "--profile", "run.json"]) == 0
    assert cli.main(["report", "run.json"]) == 0
    page = open_file(tmp_path / "report.html")
    assert "takes" in page.inner_text(".verdict") and "map(<lambda>)" in page.inner_text("pre")
    assert page.locator("figure canvas").count() >= 3


def test_the_report_of_a_running_program_is_written_without_its_token(tmp_path):
    it = iter(bushel.MapDataset.range(50).to_iter_dataset().with_options(execution_tracking_mode="stage_timing"))
    list(it)
    with bushel.serve_report(it) as server:
        assert cli.main(["report", server.url, str(tmp_path / "run.html")]) == 0
    text = (tmp_path / "run.html").read_text()
    assert "range(50)" in text and server.url.partition("token=")[2] not in text


HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"


def test_texts_of_data_are_only_text(open_file, tmp_path):
    facts = Facts(HOSTILE, HOSTILE, details={HOSTILE: HOSTILE}, splits={HOSTILE: 3}, damage=[HOSTILE], notes=[HOSTILE])
    facts.schema, facts.histograms = [EntryFacts(HOSTILE, HOSTILE, HOSTILE)], [Histogram(HOSTILE, [0, 1, 2], [3, 4])]
    it = iter(bushel.MapDataset.range(5).to_iter_dataset().with_options(execution_tracking_mode="stage_timing"))
    history = History(HOSTILE, it.report)
    for _ in it:
        history.sample()
    snapshot = json.loads(json.dumps(history.describe()))
    snapshot["report"]["stages"][0]["call"] = snapshot["verdict"]["sentence"] = snapshot["program"] = HOSTILE
    snapshot["report"] |= {"skipped": 1, "skips": [{"which": HOSTILE, "error": HOSTILE, "count": 1}]}
    path = tmp_path / "hostile.html"
    path.write_text(build_page(facts, snapshot=snapshot, statistics={HOSTILE: {"mean": 1.0}}), encoding="utf-8")
    page = open_file(path)
    assert page.title() == HOSTILE and page.locator("img").count() == 0
    assert page.inner_text("h1") == HOSTILE and page.locator("figure canvas").count() >= 4
