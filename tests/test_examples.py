"""The examples run, and keep what they promise: also when they are killed in the middle."""

import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bushel

EXAMPLES = Path(__file__).parent.parent / "examples"
ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}


def training(folder, *, workers=0, steps=24):
    command = [sys.executable, EXAMPLES / "train_nnx.py", "--checkpoints", folder]
    command += ["--steps", steps, "--every", 5, "--workers", workers]
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )


def losses(output):
    """Losses by step, to the last bit."""
    return {int(step): loss for step, loss in re.findall(r"step +(\d+) .* (0x\S+)", output)}


def to_the_end(process):
    output, errors = process.communicate(timeout=250)
    assert process.returncode == 0, errors
    return losses(output)


def test_training_killed_and_resumed_has_the_same_losses_to_the_last_bit(tmp_path):
    uninterrupted = training(tmp_path / "whole")
    killed = training(tmp_path / "killed")
    assert killed.stdout is not None
    before = ""
    for line in killed.stdout:
        before += line
        if "step   13 " in line:
            break
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=250)
    resumed = to_the_end(training(tmp_path / "killed", workers=2))
    expected = to_the_end(uninterrupted)
    assert list(expected) == list(range(1, 25))
    assert len(set(expected.values())) == 24
    first = min(resumed)
    # After the last checkpoint that was complete. The program may have gone on until the signal arrived.
    assert first in (6, 11, 16, 21)
    assert losses(before).items() <= expected.items()
    assert resumed == {step: loss for step, loss in expected.items() if step >= first}


def test_the_example_of_elastic_hosts_prints_what_it_should():
    command = [sys.executable, str(EXAMPLES / "elastic.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "4 hosts of 3 rows: 36 records, now at 36",
        "3 hosts of 4 rows: 24 records, now at 60",
        "1 hosts of 12 rows: 40 records, now at 100",
        "All 100 records, each once, in the order of a single host.",
    ]


def many_processes(folder, processes):
    command = [sys.executable, EXAMPLES / "many_processes.py", "--processes", processes, "--checkpoints", folder]
    command = [*map(str, command), "--steps", "16", "--every", "4"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def batches(output):
    """A checksum of each global batch, by step."""
    return {int(step): int(checksum) for step, checksum in re.findall(r"step +(\d+)  batch +(\d+) ", output)}


def checksums_of_the_host():
    module = runpy.run_path(str(EXAMPLES / "many_processes.py"))
    records = bushel.MapDataset.range(module["RECORDS"]).seed(0).shuffle().map(module["read"]).repeat()
    ds = records.batch(module["BATCH"])
    return {step: int(np.sum(ds[step - 1]["index"] * np.arange(module["BATCH"]))) for step in range(1, 17)}


def check_killed_and_resumed(folder, processes, fewer, how):
    killed = many_processes(folder, processes)
    assert killed.stdout is not None
    before = ""
    for line in killed.stdout:
        before += line
        if "step  10 " in line:
            break
    listed = re.search(r"processes: ([\d ]+)", before)
    assert listed, before
    pids = [int(pid) for pid in listed[1].split()]
    if how is signal.SIGINT:
        killed.send_signal(how)
    else:
        os.kill(pids[-1], how)
    _, errors = killed.communicate(timeout=250)
    told = "Stopped. Start again" if how is signal.SIGINT else f"Process {processes - 1} has ended with code -9."
    assert killed.returncode == 1 and told in errors, errors
    assert "Traceback" not in errors or how is signal.SIGKILL, errors  # another process may have seen it die
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    resumed = many_processes(folder, fewer)
    output, errors = resumed.communicate(timeout=250)
    assert resumed.returncode == 0, errors
    expected = checksums_of_the_host()
    assert len(set(expected.values())) == 16
    found = batches(output)
    # After the last checkpoint that was complete. The program may have gone on until the signal arrived.
    assert min(found) in (5, 9, 13) and max(found) == 16
    assert batches(before).items() <= expected.items()
    assert found == {step: checksum for step, checksum in expected.items() if step >= min(found)}


@pytest.mark.slow  # tests/test_global_arrays.py does the same with a program of its own
def test_a_job_of_two_processes_is_killed_and_resumed_on_one(tmp_path):
    check_killed_and_resumed(tmp_path, 2, 1, signal.SIGKILL)


@pytest.mark.slow
def test_a_job_of_four_processes_is_interrupted_and_resumed_on_three(tmp_path):
    check_killed_and_resumed(tmp_path, 4, 3, signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"),
    [("digits.py", "bit for bit"), ("language.py", "bit for bit"), ("text_stream.py", "the same batches followed")],
)
def test_an_example_runs(name, told, tmp_path):
    command = [sys.executable, EXAMPLES / name]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert told in done.stdout


def test_a_policy_on_a_lerobot_data_set_resumes():
    command = [sys.executable, EXAMPLES / "lerobot_policy.py", "--steps", 16, "--episodes", 8]
    done = subprocess.run(list(map(str, command)), env=ENVIRONMENT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    first, last = map(float, re.findall(r"Loss of the first 10 steps (\S+), of the last 10 (\S+)\.", done.stdout)[0])
    assert last < first
    assert "Equal to the uninterrupted run after a stop at step 8, bit for bit." in done.stdout
    assert "{'hand': 24, 'rover': 8}" in done.stdout
    assert "The camera that the rover lacks is masked." in done.stdout


def robot_policy(*arguments):
    command = [sys.executable, EXAMPLES / "robot_policy.py", *arguments]
    done = subprocess.run(list(map(str, command)), env=ENVIRONMENT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Equal to the uninterrupted run, losses and weights, bit for bit." in done.stdout
    first, last = map(float, re.findall(r"Loss of the first 10 steps (\S+), of the last 10 (\S+)\.", done.stdout)[0])
    moves = re.findall(r"(\w+): .* off by (\S+); moves are (\S+) long", done.stdout)
    return first, last, {robot: float(off) / float(length) for robot, off, length in moves}


@pytest.mark.slow  # test_a_policy_on_a_lerobot_data_set_resumes trains and resumes, too, and is faster
def test_a_policy_for_two_robots_learns_and_resumes():
    first, last, _ = robot_policy("--steps", 30, "--episodes", 40)
    assert last < 0.8 * first


@pytest.mark.slow
def test_a_policy_for_two_robots_knows_where_to_go():
    first, last, errors = robot_policy()
    assert last < 0.3 * first
    assert errors.keys() == {"arm", "rover"}
    assert max(errors.values()) < 0.6  # 1 is a robot that does not move
