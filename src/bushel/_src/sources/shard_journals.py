"""Journals of shards that replace others: where each new shard is while a conversion gives shards their final names.

Several files cannot be renamed at once. So a conversion first writes all new shards under temporary names, then the
journal, then it renames. A journal that exists says: the new shards are complete, and the old ones are void. Readers
go by it, so they see all of the old shards or all of the new ones at any moment. This module knows names and contents;
`conversion.py` writes, `file_access.py` reads.
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
from typing import Any

from bushel._src.base import checked_files
from bushel._src.base.errors import DamagedFile

ENDING = ".converting"
"""How the name of a journal ends. It begins with a dot."""
VERSION = 1
_SHARD = re.compile(r"(?P<stem>.+)-\d{5,}-of-\d{5,}\.(?P<ending>[^./]+)")
_STAGED = re.compile(r"\.[0-9a-f]{12}\.part$")


@dataclasses.dataclass(frozen=True)
class Journal:
    """The content of a journal. All names are names of files in the folder of the journal."""

    new: tuple[str, ...]
    """The final names of the new shards."""
    old: tuple[str, ...]
    """The files that the new shards replace; some may have names of new shards."""
    mark: str
    """What the temporary name of a new shard has after the final one."""
    identity: str = ""
    """A digest of what was converted, so that the same command knows that its work is done."""

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return checked_files.json_bytes({"version": VERSION, **dataclasses.asdict(self)})

    @staticmethod
    def parse(data: bytes, where: str) -> Journal:
        """Parse and check a journal that was read from `where`."""
        match checked_files.parse_json(data, where):
            case {"version": int(version)} if version != VERSION:
                raise DamagedFile(
                    f"{where} has version {version}; this Bushel reads version {VERSION}. Finish the conversion with "
                    "the version of Bushel that began it."
                )
            case {"new": list(new), "old": list(old), "mark": str(mark), "identity": str(identity)}:
                pass
            case _:
                raise DamagedFile(f"{where} is not a journal of a conversion.")
        if not _STAGED.fullmatch(mark) or not all(map(_is_plain_name, [*new, *old])):
            raise DamagedFile(f"{where} names files that do not lie in its folder.")
        return Journal(tuple(new), tuple(old), mark, identity)


def _is_plain_name(name: Any) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and os.path.basename(name) == name


def make_mark() -> str:
    """Return what a temporary name has after the final one. Each conversion has its own."""
    return f".{secrets.token_hex(6)}.part"


def final_name(path: str) -> str:
    """Return the final name of a shard that may still have its temporary name.

    >>> final_name("data/c-00000-of-00002.bagz.0123456789ab.part")
    'data/c-00000-of-00002.bagz'
    """
    return _STAGED.sub("", path)


def is_staged(path: str) -> bool:
    """Return whether a path is a temporary name of a shard."""
    return _STAGED.search(path) is not None


def journal_name(target: str) -> str:
    """Return the name of the journal of a target, such as "train.array_record"."""
    return f".{target}{ENDING}"


def is_journal(name: str) -> bool:
    """Return whether a file with this name is a journal."""
    return name.startswith(".") and name.endswith(ENDING)


def find_target(name: str) -> str | None:
    """Return the target that a file is a shard of, or None.

    >>> find_target("train-00001-of-00008.array_record")
    'train.array_record'
    """
    shard = _SHARD.fullmatch(name)
    return f"{shard['stem']}.{shard['ending']}" if shard else None
