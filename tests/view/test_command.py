"""`bushel view` as a program."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_stopped(tmp_path, sent):
    (tmp_path / "train.py").write_text(
        "import bushel\ndef make():\n    return bushel.MapDataset.range(100).seed(0).shuffle().batch(4)\n"
    )
    command = [sys.executable, "-m", "bushel", "view", "train.py:make", "--no-browser", "--index", "7"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONUNBUFFERED": "1"}, **pipes) as program:
        address = program.stdout.readline().decode().split(" at ")[1].strip()
        base, token = address.split("#token=")
        request = urllib.request.Request(f"{base}api/info", headers={"X-Bushel-Token": token})
        with urllib.request.urlopen(request, timeout=250) as response:
            info = json.load(response)
            policy = response.headers["content-security-policy"]
        assert info["start"] == 7 and info["target"] == "train.py:make" and len(info["steps"]) == 4
        assert "frame-ancestors 'none'" in policy
        program.send_signal(sent)
        _, errors = program.communicate(timeout=250)
        assert program.returncode in (0, 130, -sent) and b"Traceback" not in errors


def test_targets_that_cannot_be_opened(tmp_path):
    for target, message in (("nothing.xyz", "does not exist"), ("nothing.py:ds", "does not exist")):
        command = [sys.executable, "-m", "bushel", "view", target, "--no-browser"]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)
        assert ended.returncode == 1 and message in ended.stderr and "Traceback" not in ended.stderr


def test_the_server_is_imported_only_for_a_page():
    """A training program and its workers pay nothing for the viewer."""
    program = (
        "import sys, bushel\n"
        "bushel.MapDataset.range(3).show(1)\n"
        "assert not {'starlette', 'uvicorn', 'bushel.view'} & set(sys.modules)\n"
        "import bushel.view\n"
        "assert not {'starlette', 'uvicorn'} & set(sys.modules) and callable(bushel.view)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=250)
