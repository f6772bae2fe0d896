"""Hypothesis draws the same cases in every run of `make test`, and new ones in every run of `make test-all`."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("new", derandomize=False)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("same" if config.option.markexpr == "not slow" else "new")
