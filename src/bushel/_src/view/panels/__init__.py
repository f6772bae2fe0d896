"""The panels of the page: one module for each, and `page/panels/NAME.js` beside it. README.md has the contract."""

from __future__ import annotations

import importlib
from typing import Any

from bushel._src.view.session import Routes, Session

PANELS = ("pipeline", "elements", "robots", "origin", "order", "running")
"""The modules of this folder that are panels, in the order of the page's tabs."""


class Panel:
    """A module of this folder."""

    def __init__(self, name: str):
        self.name = name
        self._module: Any = importlib.import_module(f"bushel._src.view.panels.{name}")

    def routes(self, session: Session) -> Routes:
        """Return the panel's functions by name."""
        return self._module.routes(session)

    def about(self, session: Session) -> Any:
        """Return what the page knows of the panel when it opens (`info.panels[NAME]`): quick to find, without
        reading.
        """
        about = getattr(self._module, "about", None)
        return {} if about is None else about(session)


def load() -> list[Panel]:
    """Return all panels."""
    return [Panel(name) for name in PANELS]


def describe_session(session: Session) -> dict[str, Any]:
    """Return what the page knows when it opens: the target, the steps, and what each panel says of itself."""
    described = session.describe() | {"panels": {panel.name: panel.about(session) for panel in load()}}
    if described["first"] == "elements" and described["panels"]["robots"]["applies"]:
        described["first"] = "robots"  # what a policy is trained with
    return described
