"""Sharding over a mesh: the cases of mesh_cases.py, in a process that has eight devices."""

import os
import re
import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).parents[1] / "programs" / "mesh_cases.py"


def test_the_cases_on_eight_devices(request):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-x",
        "-m",
        request.config.option.markexpr,
        str(CASES),
    ]
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    child = subprocess.run(command, env=env, capture_output=True, text=True, cwd=CASES.parents[2], timeout=280)
    assert child.returncode == 0, child.stdout[-4000:] + child.stderr[-2000:]
    passed = re.search(r"(\d+) passed", child.stdout)
    assert passed and int(passed[1]) >= 12
