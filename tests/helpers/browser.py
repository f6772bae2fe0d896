"""What the tests of the viewer and of reports share: a real Chromium, and a program that trains."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("BUSHEL_TEST_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

PATIENCE_MS = 120_000  # on a busy machine, a browser takes its time

TRAINING = """
import time
import bushel

def decode(x):
    time.sleep(0.01)  # far longer than the consumer takes, also on a busy machine
    if x == 30:
        raise ValueError("record 30 is <b>broken</b>")
    return x

if __name__ == "__main__":
    ds = bushel.MapDataset.range(10**6).map(decode).batch(4).to_iter_dataset()
    ds = ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))
    it = iter(ds.with_options(execution_tracking_mode="stage_timing", on_error="skip"))
    server = bushel.serve_report(it, name="my run", interval_s=0.05)
    print(server.url, flush=True)
    for batch in it:
        time.sleep(0.002)
"""


@contextlib.contextmanager
def open_chromium() -> Iterator[Any]:
    """A browser of Playwright's. The test is skipped where there is none.

    Open it for a module, and not for the whole run: while Playwright's sync API is open, asyncio takes its loop for a
    running one in this thread, and other tests (Orbax) call asyncio.run.
    """
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS)
        yield chromium
        chromium.close()


@contextlib.contextmanager
def run_training(folder: Path) -> Iterator[Any]:
    """A process that trains with two workers until it is killed; `url` is that of its report."""
    script = folder / "train.py"
    script.write_text(TRAINING)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            child.url = child.stdout.readline().strip()  # type: ignore[attr-defined]
            yield child
        finally:
            child.kill()
