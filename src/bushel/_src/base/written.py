"""`Written`: what a function that writes files returns."""

from __future__ import annotations

import dataclasses
from typing import Any

from bushel._src.base import redact
from bushel._src.base.public import public


@public("bushel")
@dataclasses.dataclass(frozen=True, repr=False)
class Written:
    """What has been written: by `ds.save`, `convert`, `convert_episodes`, `reencode_videos`, `write_rlds`, `to_rerun`.

    Attributes:
      path: the folder or file, as a path or URL. Of a conversion into several files it is the target that was given.
      files: the paths or URLs of the files, in order.
      elements: how many elements are in them: records, episodes, or videos.
      skipped: how many elements were left out.

    >>> written = Written("data", ("data/part-00000.bag",), 10)
    >>> written
    Written(data: 10 elements in 1 file)
    >>> written.to_dict()
    {'path': 'data', 'files': ['data/part-00000.bag'], 'elements': 10, 'skipped': 0}
    """

    path: str
    files: tuple[str, ...]
    elements: int
    skipped: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {"path": self.path, "files": list(self.files), "elements": self.elements, "skipped": self.skipped}

    def __repr__(self) -> str:
        files = f"{len(self.files):,} {'file' if len(self.files) == 1 else 'files'}"
        more = f", {self.skipped:,} skipped" if self.skipped else ""
        return f"Written({redact.show(self.path)}: {self.elements:,} elements in {files}{more})"
