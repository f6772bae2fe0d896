"""A flag of the command line is an argument of the Python call, with the same name and the same default."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bushel
from bushel._src import cli
from bushel._src.cli.parser import Parser
from bushel._src.trajectory.episode_conversion import convert_episodes, reencode_videos
from bushel._src.view.rerun_export import to_rerun
from bushel._src.view.show_page import view
from bushel.sources import convert

CALLS: dict[str, list[Callable[..., Any]]] = {
    "view": [view, to_rerun],
    "convert": [convert, convert_episodes],
    "reencode": [reencode_videos],
}
"""The Python calls of commands that have one."""
SINGULAR = {"storage_option": "storage_options", "target_storage_option": "target_storage_options"}
SINGULAR |= {"format_option": "format_options"}
NEGATED = {"quiet": "progress", "no_verify": "verify"}
OF_THE_COMMAND = {
    "view": {"attach", "no_browser", "rerun", "limit", "quiet"},  # `limit` stands for the range `elements`
    "convert": {"ray", "source"},  # `sources` of records, `source` of episodes
    "reencode": set(),
}


def actions(command: str) -> list[argparse.Action]:
    parser = Parser()
    commands = parser.add_subparsers()
    for add in cli.COMMANDS:
        add(commands)
    return [action for action in commands.choices[command]._actions if action.dest != "help"]


@pytest.mark.parametrize("command", CALLS)
def test_flags_are_arguments(command):
    known = {name: one for call in CALLS[command] for name, one in inspect.signature(call).parameters.items()}
    for action in actions(command):
        if action.dest in OF_THE_COMMAND[command]:
            continue
        name = NEGATED.get(action.dest) or SINGULAR.get(action.dest, action.dest)
        assert name in known, action.dest
        if action.option_strings and action.dest not in (*NEGATED, *SINGULAR) and action.default is not None:
            default = known[name].default
            assert (action.default or None) == (default or None), action.dest


def test_all_commands_on_stores_have_the_same_words():
    for command in ("view", "inspect", "stats", "bench", "report", "convert", "reencode"):
        flags = {flag for action in actions(command) for flag in action.option_strings}
        assert {"--storage-option", "--quiet"} <= flags, command
        assert not flags & {
            "--option",
            "--target-option",
            "--at",
            "--step",
            "--count",
            "--key-frames",
            "--robot",
        }


def test_exit_codes(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.arange(3))
    assert cli.main(["inspect", f"{tmp_path}/x.npy"]) == 0
    assert cli.main(["inspect", f"{tmp_path}/y.npy"]) == 1
    for words in (["inspect"], ["inspect", f"{tmp_path}/x.npy", "--no-such-flag"], ["no-such-command"]):
        with pytest.raises(SystemExit) as error:
            cli.main(words)
        assert error.value.code == 2


def test_quiet_hides_the_bar_of_a_scan(tmp_path, capsys):
    (tmp_path / "x.txt").write_text("line\n" * 100)
    shown: list[str] = []
    for more, expected in (([], True), (["--quiet"], False)):
        shown.clear()
        with bushel.on_progress(lambda name, done, total: shown.append(name)):
            assert cli.main(["inspect", f"{tmp_path}/x.txt", "--scan", *more]) == 0
        assert bool(shown) == expected
