"""Runs programs on a terminal of their own (a pty), as a person would see them."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence

BARS_AT_ONCE = "from bushel._src.base import shown_text\nshown_text.BAR_AFTER_S = 0\n"
"""The first lines of a program that draws bars for quick work, too."""
COMMAND = f"{BARS_AT_ONCE}import sys\nfrom bushel._src.cli import main\nsys.exit(main(sys.argv[1:]))"
"""The program `bushel`, with such bars."""


def run_on_terminal(*words: object, columns: int = 100, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Runs `python WORDS` with a terminal as its standard error. Returns exit code, standard output, and the screen.

    The screen is all that was written to the terminal, with the codes that move the cursor.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command: Sequence[str] = [sys.executable, *map(str, words)]
    env = os.environ | {"TERM": "xterm"} | (env or {})
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=slave, stdin=subprocess.DEVNULL, env=env) as child:
        os.close(slave)
        screen = bytearray()
        while True:
            try:
                part = os.read(master, 1 << 16)
            except OSError:  # Linux: the child has closed the terminal
                break
            if not part:
                break
            screen += part
        os.close(master)
        assert child.stdout is not None
        out = child.stdout.read().decode()
        code = child.wait(60)
    return code, out, screen.decode()


def last_drawn(screen: str) -> list[str]:
    """What each line of the screen shows in the end: what was drawn last in its place."""
    lines = screen.replace("\r\n", "\n").split("\n")
    return [line.rpartition("\r")[2].rstrip() for line in lines if line.strip()]
