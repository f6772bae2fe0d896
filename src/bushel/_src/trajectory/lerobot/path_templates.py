"""Names of files from the templates in `meta/info.json`, such as `videos/{video_key}/file-{file_index:03d}.mp4`.

A template comes with the data, so it is not trusted: `str.format` would build a text of gigabytes from
`{file_index:0999999999d}`, and read attributes of its arguments.
"""

from __future__ import annotations

import re
import string

_WIDTH = re.compile(r"0?([1-9][0-9]?)?d?")
_LONGEST = 4096
"""Characters of a path. No file system has longer ones."""


def fill_template(template: str, **values: int | str) -> str:
    """The name of a file. Raises ValueError if the template is not one of a data set.

    >>> fill_template("chunk-{chunk_index:03d}/{video_key}.mp4", chunk_index=2, video_key="front")
    'chunk-002/front.mp4'

    Args:
      template: text with fields in braces. A width has at most two digits.
      **values: what the fields may be.
    """
    try:
        parts = list(string.Formatter().parse(template))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the template {_shorten(template)} cannot be read: {error}") from None
    found = []
    for text, field, spec, conversion in parts:
        found.append(text)
        if field is None:
            continue
        if field not in values:
            raise ValueError(
                f"the template {_shorten(template)} has the field {_shorten(field)}; it may have "
                f"{', '.join(map(repr, values))}"
            )
        if conversion or not _WIDTH.fullmatch(spec or "") or (spec and isinstance(values[field], str)):
            raise ValueError(
                f"the template {_shorten(template)} formats {field!r} by {_shorten(spec or conversion or '')}; only "
                "a width of at most 99 digits, such as ':03d', is known"
            )
        found.append(format(values[field], spec or ""))
    name = "".join(found)
    if len(name) > _LONGEST:
        raise ValueError(f"the template {_shorten(template)} makes a path of {len(name)} characters")
    if ".." in name.split("/"):
        raise ValueError(f"the template {_shorten(template)} leads out of the folder of the data set")
    return name


def _shorten(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 120 else f"{shown[:100]}... ({len(shown)} characters)"
