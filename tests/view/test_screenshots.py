"""The script that makes the pictures of the documents."""

import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "docs" / "make_screenshots.py"


@pytest.mark.slow
def test_all_pictures_are_made(browser):
    spec = importlib.util.spec_from_file_location("make_screenshots", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name, shot in script.SHOTS.items():
        taken = script.take(browser, shot)
        pixels = np.asarray(Image.open(io.BytesIO(taken)).convert("RGB"))
        assert len(taken) < script.LARGEST and pixels.shape[:2] == (shot.height, shot.width), name
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20, name  # not an empty page
        assert (SCRIPT.parent / "images" / f"{name}.png").is_file(), name
