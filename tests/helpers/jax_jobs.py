"""Jobs of several JAX processes on this machine: `programs/global_job.py`, started together and watched."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

PROGRAM = Path(__file__).parents[1] / "programs" / "global_job.py"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def started(devices: list[int], **job: Any) -> Iterator[list[tuple[subprocess.Popen[str], IO[str]]]]:
    """One process for each entry of `devices`, with as many devices; all of them are gone at the end."""
    shared = job | {"devices": devices, "port": free_port()}
    with contextlib.ExitStack() as stack:
        processes = []
        for number in range(len(devices)):
            # Files, since nobody reads the output of a process while another one is waited for.
            output = stack.enter_context(tempfile.TemporaryFile("w+"))
            command = [sys.executable, str(PROGRAM), json.dumps(shared | {"process": number})]
            environment = os.environ | {"JAX_PLATFORMS": "cpu"}
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append((process, output))
        yield processes


def text_of(output: IO[str]) -> str:
    output.seek(0)
    return output.read()


def run_job(devices: list[int], **job: Any) -> list[dict[str, Any]]:
    """What each process has found, when all have ended well."""
    with started(devices, **job) as processes:
        wait_for_any_failure(processes)
        for process, output in processes:
            assert process.wait(timeout=250) == 0, text_of(output)[-4000:]
        return [json.loads(text_of(output).splitlines()[-1]) for _, output in processes]


def run_until_death(devices: list[int], **job: Any) -> list[int]:
    """The exit codes of a job that is ended, as a launcher does it, when its first process has died."""
    with started(devices, **job) as processes:
        wait_for_any_failure(processes)
        for process, _ in processes:
            process.kill()
        return [process.wait(timeout=250) for process, _ in processes]


def wait_for_any_failure(processes: list[tuple[subprocess.Popen[str], IO[str]]]) -> None:
    """Waits until one process has failed or all have ended: those that are left would wait for the dead one."""
    deadline = time.monotonic() + 250
    while time.monotonic() < deadline:
        codes = [process.poll() for process, _ in processes]
        if any(codes) or None not in codes:
            return
        time.sleep(0.05)
