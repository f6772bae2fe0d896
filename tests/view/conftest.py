"""A real Chromium, and pages of the viewer opened in it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers.browser import PATIENCE_MS, open_chromium

import bushel
from bushel._src.view.session import Session
from bushel._src.view.show_page import View


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_chromium() as chromium:
        yield chromium


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """open_page(dataset or session, panel="elements", step=0, index=3): the page, with its panel shown.

    The test fails if the page raises an error, or if something is refused by the content security policy.
    """
    views: list[View] = []
    contexts: list[Any] = []
    problems: list[str] = []
    expected: list[str] = []

    def open(target: Any, *, width: int = 1100, height: int = 800, dark: bool = False, **place: Any) -> Any:
        view = View(target) if isinstance(target, Session) else bushel.view(target)
        views.append(view)
        scheme = "dark" if dark else "light"
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.goto(view.url + "".join(f"&{name}={value}" for name, value in place.items()))
        page.wait_for_selector("main .panel, main .failure")
        page.view, page.expected_problems = view, expected
        return page

    yield open
    for context in contexts:
        context.close()
    for view in views:
        view.close()
    assert [problem for problem in problems if not any(part in problem for part in expected)] == []
