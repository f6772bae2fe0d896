"""Batches that several processes read together, each the rows of its own devices: those of one process, bit for bit.

The processes are real, with jax.distributed on loopback. `device_cases.py` has the layouts of one process.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.jax_jobs import free_port, run_job, run_until_death
from programs import global_job

PROGRAM = Path(__file__).parent / "programs" / "device_program.py"
CASES = Path(__file__).parent / "programs" / "device_cases.py"


@pytest.fixture(scope="module")
def alone():
    """A digest of each global batch, by step, as one process with one device reads them; and the state at the end."""
    with iter(global_job.trained_dataset()) as it:
        return {str(step): global_job.digest(batch) for step, batch in enumerate(it, 1)}, it.get_state()


def test_the_cases_on_eight_devices(request):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    options = ["-q", "-p", "no:cacheprovider", "-x", "-m", request.config.option.markexpr]
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "pytest", *options, str(CASES)]
    child = subprocess.run(command, env=env, capture_output=True, text=True, cwd=CASES.parents[2], timeout=280)
    assert child.returncode == 0, child.stdout[-4000:] + child.stderr[-2000:]
    passed = re.search(r"(\d+) passed", child.stdout)
    assert passed and int(passed[1]) >= 30


def test_four_processes_with_uneven_devices_read_their_own_rows():
    devices = [1, 2, 1, 4]
    found = run_job(devices, layouts=True)
    for process, count in zip(found, devices, strict=True):
        read = process["read"]
        # Six batches of 24 rows, the last one padded, cut into eight parts; padded rows read a row again.
        assert read["by_map"] == read["by_stream"] == 6 * 24 // 8 * count
        assert read["chosen"] == 8 * 24 // 8 * count
        assert read["filtered"] == read["after_batch"] == global_job.RECORDS  # whole batches, every record once
        assert all(read[name] <= global_job.RECORDS * count / 4 for name in ("packed", "bucketed", "mixed"))


def test_a_job_is_killed_and_resumed_on_two_processes_and_then_on_three(tmp_path, alone):
    expected, end = alone
    job = {"folder": str(tmp_path), "every": 2}
    assert run_until_death([1] * 4, steps=100, die_at=3, **job)[-1] == -9
    assert [path.name for path in tmp_path.iterdir()] == ["2"]
    seen = []
    for devices, steps in (([1, 1], 2), ([1] * 3, 100)):
        found = run_job(devices, steps=steps, **job)
        assert all(process["seen"] == found[0]["seen"] for process in found)
        assert all(process["state"] == found[0]["state"] for process in found)
        seen.append(found[0]["seen"])
    first, second = seen
    assert list(first) == ["3", "4"]  # from the last checkpoint on
    assert list(second) == ["5", "6"]
    assert first | second == {step: expected[step] for step in ("3", "4", "5", "6")}
    assert found[0]["state"] == end


# How programs end. `test_to_device.py` has those of one process.

ENDINGS = {
    "break": (0, None),
    "exit": (3, None),
    "step fails": (1, "RuntimeError: the step failed"),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDINGS)
def test_programs_of_two_processes_end_at_once_and_without_noise(how):
    port, environment = free_port(), os.environ | {"JAX_PLATFORMS": "cpu"}
    commands = [[sys.executable, str(PROGRAM), how, str(port), str(number)] for number in range(2)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for command in commands
    ]
    code, last = ENDINGS[how]
    for process in processes:
        output, errors = process.communicate(timeout=100)
        assert "running" in output, errors
        assert process.returncode == code, errors
        assert errors.count("Traceback") == (last is not None), errors
        assert errors.splitlines()[-1:] == ([] if last is None else [last]), errors


@pytest.mark.slow
@pytest.mark.parametrize("devices", [[1, 1], [3, 1], [2, 2, 2, 2], [1, 1, 1]])
def test_all_layouts_on_several_processes(devices):
    assert len(run_job(devices, layouts=True)) == len(devices)


@pytest.mark.slow
def test_a_job_goes_on_with_any_number_of_processes_and_devices(tmp_path, alone):
    expected, end = alone
    seen = {}
    for devices in ([2, 2], [1] * 4, [4], [3, 3, 3, 3], [1]):
        found = run_job(devices, folder=str(tmp_path), every=1, steps=1)
        assert all(process["state"] == found[0]["state"] for process in found)
        seen |= found[0]["seen"]
    found = run_job([2], folder=str(tmp_path), every=1, steps=10)
    assert seen | found[0]["seen"] == expected
    assert found[0]["state"] == end
