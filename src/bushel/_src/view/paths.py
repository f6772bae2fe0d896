"""Files, folders and URLs that the viewer opens: sources, robot data sets, folders of pictures."""

from __future__ import annotations

import os
from typing import Any

from bushel._src.base import redact
from bushel._src.base.errors import UnknownFormat
from bushel._src.sources.folder_listing import file_exists
from bushel._src.sources.paths import expand_path, is_url
from bushel._src.sources.source_by_path import open_records
from bushel._src.trajectory import episode_paths


def open_path(path: str, *, split: str | None = None, options: dict[str, Any] | None = None) -> Any:
    """The source of a file, folder or URL, or the `EpisodeBuilder` of a robot data set."""
    path = expand_path(path)
    kind = episode_paths.find_kind(path, options)
    if kind is not None:
        return episode_paths.open_path(path, kind, options)
    try:
        return open_records(path, split=split, options=options)
    except UnknownFormat:
        if not (file_exists(path, options) if is_url(path) else os.path.exists(path)):
            raise FileNotFoundError(
                f"{redact.show(path)} does not exist. Name a file, a folder, a pattern, or train.py:make_dataset."
            ) from None
        raise
