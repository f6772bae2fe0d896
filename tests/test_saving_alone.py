"""`ds.save(folder)` without a format: works with the core's packages alone, and keeps what the other formats keep."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import bushel
from bushel import MapDataset
from bushel.testing import same


def nested(number):
    return {
        "image": np.full((number % 5, 3), number, np.float32),
        "inner": {"text": "ä" * (number % 4), "pair": (number, b"q" * number)},
        "parts": [np.arange(number % 3), None],
    }


def test_nested_elements_are_read_back_at_any_position(tmp_path):
    written = MapDataset.range(70).map(nested).save(tmp_path, shards=3)
    assert [os.path.basename(path) for path in written.files] == [f"part-0000{number}.bag" for number in range(3)]
    source = bushel.sources.open(tmp_path)
    assert len(source) == 70
    assert same(source.__getitems__([69, 0, 33, 0]), [nested(number) for number in (69, 0, 33, 0)])


def test_a_stopped_run_goes_on_after_its_complete_files(tmp_path):
    alive, calls = False, []

    def count(x):
        if x == 25 and not alive:
            raise RuntimeError("stopped")
        calls.append(x)
        return x

    ds = MapDataset.range(40).map(count)
    with pytest.raises(RuntimeError, match="stopped"):
        ds.save(tmp_path, shards=4)
    assert json.loads((tmp_path / ".saving.json").read_text())["counts"] == [10, 10]
    alive = True
    calls.clear()
    ds.save(tmp_path, shards=4)
    assert calls == list(range(20, 40))
    assert list(MapDataset.source(bushel.sources.open(tmp_path))) == list(range(40))


ALONE = """
import sys
import cloudpickle, numpy, tqdm

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "bushel", "cloudpickle", "numpy", "tqdm"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import bushel

bushel.MapDataset.range(9).map(lambda x: {"x": [x, str(x)]}).save(sys.argv[1], shards=2)
print(bushel.sources.open(sys.argv[1])[7])
"""


def test_no_other_package_is_imported(tmp_path):
    done = subprocess.run([sys.executable, "-c", ALONE, tmp_path], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "{'x': [7, '7']}\n"
