"""What a page shows while an element takes long: a spinner, the seconds, and the step that computes."""

import functools
import inspect
import json
import threading

import numpy as np
import pytest

import bushel
from bushel import MapDataset
from bushel._src.view.server import RequestActivity, list_codes
from bushel._src.view.session import Session


class Gate:
    """A step that waits until the test lets it go on, so that no test depends on time."""

    def __init__(self):
        self.entered, self.open = threading.Event(), threading.Event()

    def wait(self):
        self.entered.set()
        assert self.open.wait(120)


def make_waiting(gate, slow_for):
    def load(x):
        return {"x": x}

    def decode(element):
        if slow_for(int(element["x"])):
            gate.wait()  # the line that is shown
        return element

    return MapDataset.range(50).map(load).map(decode).map(lambda element: element | {"done": 1}), decode


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def test_a_slow_element_shows_at_once_that_it_is_being_made(open_page):
    gate = Gate()
    ds, decode = make_waiting(gate, lambda x: x == 3)
    page = open_page(ds, panel="elements", index=3)
    assert gate.entered.wait(120)
    page.wait_for_selector("#sign .spinner")
    assert "Reading element 3" in page.locator("#sign").inner_text()
    sign, controls = (page.locator(place).bounding_box() for place in ("#sign", ".controls"))
    assert sign["y"] > controls["y"] + controls["height"]  # what the user needs to go on is not covered
    page.wait_for_function("() => document.querySelector('#sign .step-now').textContent.includes('decode')")
    shown = page.locator("#sign .step-now").inner_text()
    assert shown == f"map(decode), line {line_of(decode, 'gate.wait()')} of test_signs_of_life.py"
    page.wait_for_function("() => /^[1-9]/.test(document.querySelector('#sign .seconds').textContent)")
    page.get_by_role("button", name="Next").click()  # the page goes on meanwhile
    page.wait_for_selector(".shown[data-index='4']:not([aria-busy])")
    assert page.locator("#sign").is_hidden()
    gate.open.set()
    page.get_by_role("button", name="Previous").click()
    page.wait_for_selector(".shown[data-index='3']:not([aria-busy])")
    assert page.locator("#sign").is_hidden()


@pytest.mark.parametrize("panel", ["pipeline", "robots"])
def test_other_panels_show_it_too(open_page, panel):
    gate = Gate()
    element = {"observation": {"state": np.zeros(3)}, "action": np.zeros(2)}

    def slow(record):
        gate.wait()
        return record

    page = open_page(MapDataset.source([element]).map(slow), panel=panel)
    assert gate.entered.wait(120)
    page.wait_for_function("() => document.querySelector('#sign .step-now').textContent.startsWith('map(slow)')")
    gate.open.set()
    page.wait_for_selector("#sign", state="hidden")


def test_a_key_that_is_held_down_asks_for_the_last_element_only(open_page):
    gate, asked = Gate(), []

    def slow(x):
        asked.append(int(x))
        if x == 0:
            gate.wait()
        return x

    page = open_page(MapDataset.range(50).map(slow), panel="elements")
    assert gate.entered.wait(120)
    page.evaluate("""() => {
        for (let n = 0; n < 20; n++) document.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
    }""")
    page.wait_for_selector(".shown[data-index='20']:not([aria-busy])")
    gate.open.set()
    assert asked == [0, 20]


class Doubler(bushel.transforms.Map):
    def map(self, element):
        return self.double(element)

    def double(self, element):
        return 2 * element


class Numbers:
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return index


def test_the_code_of_each_kind_of_step_is_known():
    def scale(element, by):
        return element * by

    def noise(element, rng):
        return element + rng.random()

    def join(rows):
        return np.stack(rows)

    ds = MapDataset.source(Numbers()).map(functools.partial(scale, by=3)).map(Doubler()).seed(1).random_map(noise)
    ds = ds.map(Numbers().__getitem__).batch(2, batch_fn=join)
    steps = Session(ds).steps
    expected = [Numbers.__getitem__, scale, Doubler.double, None, noise, Numbers.__getitem__]
    for step, function in zip(steps, expected):
        assert (function.__code__ in list(list_codes(step.node))) if function else not list(list_codes(step.node))
    assert join.__code__ in list(list_codes(steps[-1].node))


def test_activity_names_the_step_of_each_request():
    gate = Gate()
    ds, _ = make_waiting(gate, lambda x: True)
    session = Session(ds)
    activity = RequestActivity(session)

    def answer():
        with activity.watch("mine"):
            session.read(-1, 0)

    thread = threading.Thread(target=answer)
    thread.start()
    assert gate.entered.wait(120)
    (mine,) = activity.describe().values()
    assert (mine["step"], mine["call"]) == (2, "map(decode)") and mine["seconds"] >= 0
    json.dumps(mine)
    gate.open.set()
    thread.join()
    assert activity.describe() == {}
