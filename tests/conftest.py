"""Hypothesis draws the same cases in every run of `make test`, and new ones in every run of `make test-all`.

A case may take as long as it likes: a busy machine is no failure.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("new", derandomize=False, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("same" if config.option.markexpr == "not slow" else "new")
