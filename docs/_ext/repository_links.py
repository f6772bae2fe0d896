"""Links that a code host shows well and the site would not: out of docs/, and with a file name as their text.

On the site `../examples/digits.py` leads to the repository, and `[state.md](state.md)` shows the title of that page.
"""

import re
from pathlib import Path, PurePosixPath

REPOSITORY = "https://github.com/bushel-data/bushel"
LINK = re.compile(r"\]\((\.\./[^)\s]+)\)")
FILE_NAME = re.compile(r"(?<!!)\[[\w/]+\.md\](\((?!https?:)[^)\s]+\.md(?:#[^)\s]*)?\))")


def to_repository(text: str, page: str) -> str:
    """The text of `page`, a path relative to docs/, with whole addresses for files that are not part of the site."""
    folder = PurePosixPath("docs") / PurePosixPath(page).parent

    def whole(match: re.Match[str]) -> str:
        target, _, anchor = match[1].partition("#")
        parts: list[str] = []
        for part in (folder / target).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        if parts[:1] == ["docs"]:
            return match[0]
        kind = "blob" if PurePosixPath(target).suffix else "tree"
        return f"]({REPOSITORY}/{kind}/main/{'/'.join(parts)}{'#' + anchor if anchor else ''})"

    return LINK.sub(whole, text)


def with_titles(text: str) -> str:
    """The text of a page; links whose text is a file name have no text, and Sphinx fills in the title of the page."""
    return FILE_NAME.sub(r"[]\1", text)


def _rewrite(app, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname)).relative_to(app.srcdir).as_posix()
    source[0] = with_titles(to_repository(source[0], page))


def setup(app) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
