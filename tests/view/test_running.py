"""The panel "Running" in a real Chromium, attached to a program that trains in another process."""

from __future__ import annotations

import gc
import json
import re
import weakref

import pytest
from helpers.browser import run_training

import bushel
from bushel._src.graph.streams import Elements
from bushel._src.reporting.report_server import History
from bushel._src.view import panels
from bushel._src.view.attachment import Attachment, NothingRuns, find_iterator, open_unlisted
from bushel._src.view.session import Session


@pytest.fixture
def training(tmp_path):
    with run_training(tmp_path) as child:
        yield child


def number_in(page, tile):
    return float(re.sub(r"[^\d.]", "", page.inner_text(f".tile[data-name='{tile}'] b")))


def test_an_attached_program_is_shown_while_it_runs_and_after_it_has_ended(training, open_page):
    attachment = Attachment(training.url)
    page = open_page(Session(None, target=attachment.name, attached=attachment))
    assert page.get_by_role("tab").all_inner_texts() == ["Running"]
    page.wait_for_function(
        "() => document.querySelector('.verdict').textContent.startsWith('input-bound: map(decode)')"
    )
    assert "my run: train.py" in page.inner_text(".about")
    page.wait_for_selector("[data-chart='Elements per second'] canvas")
    before = number_in(page, "elements")
    shown = "Number(document.querySelector(\".tile[data-name='elements'] b\").textContent.replaceAll(',', ''))"
    page.wait_for_function(f"(before) => {shown} > before", arg=before)
    assert page.inner_text("tr[data-stage='map(decode)'] td:nth-child(2)") == "workers"
    assert int(page.inner_text("tr[data-stage='map(decode)'] .share").rstrip(" %")) > 50
    assert page.inner_text(".tile[data-name='workers'] b") == "2"
    page.wait_for_selector(".errors li")
    assert "record 30 is <b>broken</b>" in page.inner_text(".errors pre") and page.locator(".errors b").count() == 0
    points = "() => document.querySelector(\"[data-chart='Elements per second'] .plot\").plot.data[0].length"
    drawn = page.evaluate(points)
    page.wait_for_function(f"(drawn) => ({points})() > drawn", arg=drawn)  # the chart follows the program

    training.kill()
    training.wait()
    page.wait_for_selector(".trouble .failure")
    assert "does not answer" in page.inner_text(".trouble") and "It may have ended" in page.inner_text(".trouble")
    assert page.locator("tr[data-stage='map(decode)']").count() == 1  # what was seen stays


def test_the_file_of_a_profile_is_shown_without_asking_again(open_page, tmp_path):
    it = iter(bushel.MapDataset.range(50).to_iter_dataset().with_options(execution_tracking_mode="stage_timing"))
    history = History("a profile", it.report)
    for _ in it:
        history.sample()
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(history.describe(finished=True)))
    attachment = Attachment(path)
    page = open_page(Session(None, target=attachment.name, attached=attachment))
    page.wait_for_selector("[data-chart='Elements per second'] canvas")
    path.unlink()
    assert page.inner_text(".tile[data-name='elements'] b") == "50"
    assert "the iterator is closed" in page.inner_text(".about")
    assert page.locator(".trouble .failure").count() == 0


def timed(length=10**6):
    """A stream whose stages are timed."""
    ds = bushel.MapDataset.range(length).map(str).batch(4).to_iter_dataset()
    return ds.with_options(execution_tracking_mode="stage_timing")


def wait_for_elements(page, count):
    shown = "document.querySelector(\".tile[data-name='elements'] b\")?.textContent.replaceAll(',', '')"
    page.wait_for_function(f"(count) => {shown} === count", arg=str(count))


def test_an_iterator_that_begins_after_the_page_was_opened_gets_a_tab(open_page):
    ds = timed()
    page = open_page(ds)
    assert "Running" not in page.get_by_role("tab").all_inner_texts()
    with iter(ds) as it:
        for _ in range(30):
            next(it)
        page.get_by_role("tab", name="Running").click()
        wait_for_elements(page, 30)
        page.wait_for_function("() => document.querySelector('.verdict').textContent.startsWith('input-bound: ')")
        assert page.locator("tr[data-stage='map(str)']").count() == 1
        for _ in range(7):
            next(it)
        wait_for_elements(page, 37)
    page.wait_for_function("() => document.querySelector('.about').textContent.includes('the iterator is closed')")


def test_an_iterator_that_is_passed_is_shown_first(open_page):
    it = iter(timed())
    page = open_page(it)
    assert page.get_by_role("tab", selected=True).all_inner_texts() == ["Running"]
    next(it)
    wait_for_elements(page, 1)
    page.get_by_role("tab", name="Elements").click()
    page.wait_for_selector(".panel.elements")
    with pytest.raises(TypeError, match="got generator"):
        bushel.view(x for x in range(3))


def test_the_viewer_does_not_hold_an_iterator():
    it = iter(timed())
    alive = weakref.ref(it)
    with bushel.view(it) as page:
        assert page._session.attached.read()["finished"] is False
        del it
        gc.collect()
        assert alive() is None and page._session.attached.read()["finished"] is True
        assert panels.describe_session(page._session)["panels"]["running"]["applies"]


def test_the_last_iterator_of_a_dataset_is_shown():
    ds = timed()
    with bushel.view(ds) as page:
        running = page._session.attached
        for count in (3, 5):  # epochs of a training loop
            it = iter(ds.limit(100))
            for _ in range(count):
                next(it)
            assert running.read()["report"]["elements"] == count
        it.close()
        assert running.read()["finished"] and running.read()["report"]["elements"] == 5
        del it
        gc.collect()
        assert running.read()["finished"] and running.read()["report"]["elements"] == 5


def test_iterators_of_the_viewer_itself_are_not_shown():
    ds = bushel.MapDataset.range(10)
    with open_unlisted(Elements(ds._node)):
        assert find_iterator(ds._node) is None
        with iter(ds) as it:
            assert find_iterator(ds._node) is it


def load():
    source = bushel.MapDataset.range(8).to_iter_dataset()
    return bushel.experimental.ThreadPrefetchIterDataset(source, prefetch_buffer_size=2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: bushel.MapDataset.range(8),
        lambda: bushel.MapDataset.range(8).to_iter_dataset(),
        load,
        lambda: bushel.load([1, 2, 3], num_epochs=1),
    ],
    ids=["map", "stream", "thread", "loader"],
)
def test_each_kind_of_dataset_finds_its_iterators(make):
    ds = make()
    other = iter(make())
    with bushel.view(ds) as page, bushel.view(other) as second:
        with pytest.raises(NothingRuns, match="No iterator of this data set runs in this process"):
            page._session.attached.read()
        it = iter(ds)
        next(it)
        assert find_iterator(page._session.last.node) is getattr(it, "_iterator", it)
        assert page._session.attached.read()["finished"] is False and page._session.attached.has_begun
        assert second._session.steps and second._session.attached.read()["finished"] is False


def test_without_a_program_there_is_no_such_panel(open_page):
    page = open_page(bushel.MapDataset.range(3))
    assert "Running" not in page.get_by_role("tab").all_inner_texts()
