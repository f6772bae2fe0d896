"""The tables of docs/design/layers.md as sets of names, from the lowest rank to the highest.

What the ranks mean for imports is in `test_layers.py`.
"""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "design" / "layers.md"
ROOMS = "Rooms"
ENGINE = "Inside the engine"


def read_layers(heading: str, text: str | None = None) -> list[set[str]]:
    """The names in the table below a heading, one set for each rank: `read_layers(ROOMS)[0] == {"base"}`."""
    layers: list[set[str]] = []
    for rank, names, _ in read_rows(heading, PAGE.read_text(encoding="utf-8") if text is None else text):
        found = re.findall(r"`(\w+)`", names)
        if not found:
            raise ValueError(f"The row of rank {rank} below {heading!r} has no name in backticks: {names!r}.")
        for name in found:
            if any(name in layer for layer in layers):
                raise ValueError(f"{name} stands twice in the table below {heading!r}.")
            if int(rank) == len(layers) + 1:
                layers.append(set())
            elif int(rank) != len(layers):
                raise ValueError(f"Rank {rank} of {name} follows rank {len(layers)}. Ranks count up by one.")
            layers[-1].add(name)
    return layers


def read_rows(heading: str, text: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its first line and the line of dashes."""
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    section = next((part for part in sections[1:] if part.partition("\n")[0].strip() == heading), None)
    if section is None:
        raise ValueError(f"There is no heading {heading!r}.")
    table = re.search(r"^\|(?:.*\n)(?:\|.*(?:\n|\Z))+", section, re.MULTILINE)
    if table is None:
        raise ValueError(f"There is no table below {heading!r}.")
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.group().splitlines()]
    return rows[2:]
