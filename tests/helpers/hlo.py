"""What a compiled program does with large arrays, read from XLA's text of it."""

from __future__ import annotations

import math
import re

LINE = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = (\(.*?\)|\S+) ([\w\-]+)\(")
SHAPE = re.compile(r"\w+\[([\d,]*)\]")
PASSED_ON = ("parameter", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call")
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


def compiled(function, *args):
    """XLA's text of the compiled program."""
    return function.lower(*args).compile().as_text()


def large(text, least):
    """The instructions that make something of at least so many elements; those that hand it on do not count."""
    found = []
    for line in text.splitlines():
        match = LINE.match(line)
        if match and match[2] not in PASSED_ON:
            sizes = [math.prod(map(int, filter(None, dims.split(",")))) for dims in SHAPE.findall(match[1])]
            if max(sizes, default=0) >= least:
                found.append(line.strip()[:160])
    return found


def collectives(text):
    """The instructions that make devices talk to each other."""
    return [line.strip()[:160] for line in text.splitlines() if any(f" {name}" in line for name in COLLECTIVES)]
