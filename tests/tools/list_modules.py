"""Prints the Python files of a folder, each with its first line, which says what the file owns.

python tests/tools/list_modules.py                        # the library
python tests/tools/list_modules.py src/bushel/_src/view tests  # some folders
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def first_lines(folder: Path) -> Iterator[tuple[str, str]]:
    """Path and first line of each Python file below a folder, the files of one folder together."""
    files = sorted(folder.rglob("*.py"), key=lambda file: (file.parent, file.name))
    for file in files:
        if any(part.startswith(".") for part in file.relative_to(folder).parts):
            continue
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        yield file.relative_to(folder).as_posix(), text.partition("\n")[0]


def list_modules(folder: Path) -> str:
    """The list as text, with an empty line before each folder."""
    lines = list(first_lines(folder))
    width = min(44, max((len(path) for path, _ in lines), default=0))
    text, before = "", None
    for path, line in lines:
        if (above := path.rpartition("/")[0]) != before:
            text += "\n" if before is not None else ""
            before = above
        text += f"{path:{width}}  {line}".rstrip() + "\n"
    return text


def main(arguments: list[str]) -> None:
    """The program."""
    for name in arguments or ["src/bushel"]:
        folder = ROOT / name
        if not folder.is_dir():
            raise SystemExit(f"{name} is no folder of this repository.")
        sys.stdout.write(f"# {name}\n\n{list_modules(folder)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
