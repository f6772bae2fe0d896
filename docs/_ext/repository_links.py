"""Links of a page to files outside of docs/, such as ../examples/digits.py, lead to the repository on the site."""

import re
from pathlib import Path, PurePosixPath

REPOSITORY = "https://github.com/bushel-data/bushel"
LINK = re.compile(r"\]\((\.\./[^)\s]+)\)")


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


def _rewrite(app, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname)).relative_to(app.srcdir).as_posix()
    source[0] = to_repository(source[0], page)


def setup(app) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
