"""Gives new shards their final names, and removes those that they replace: all, or none as far as readers can see.

All new shards are complete under temporary names. Then the journal is written: from this moment on the new shards
count. Then all old shards are removed, each new shard gets its final name, and the journal is removed. Old and new
shards are never under the final names together, also for programs that do not know the journal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from bushel._src.base.errors import DamagedFile, add_note
from bushel._src.sources.output_folders import Folder
from bushel._src.sources.shard_journals import Journal, find_target, journal_name


def find_shards(folder: Folder, target: str, names: Sequence[str]) -> list[str]:
    """The files that the new files of a target replace: those with the same names, and shards of another number."""
    if list(names) == [target]:
        return [target] if folder.exists(target) else []
    return [name for name in folder.names() if find_target(name) == target]


def read_journal(folder: Folder, target: str) -> Journal | None:
    """The journal of a switch that has not ended; None if there is none."""
    name = journal_name(target)
    try:
        return Journal.parse(folder.read(name), folder.shown(name))
    except FileNotFoundError:
        return None


def finish(folder: Folder, target: str) -> Journal | None:
    """Completes a switch that was interrupted. Returns its journal; None if there was none."""
    if read_journal(folder, target) is None:  # without a lock: nearly always there is nothing to do
        return None
    with _locked(folder, target):
        journal = read_journal(folder, target)  # another process may have completed it
        if journal is not None:
            _switch(folder, target, journal)
        return journal


def replace(
    folder: Folder, target: str, names: Sequence[str], mark: str, identity: str, check: Callable[[list[str]], None]
) -> None:
    """Gives files their final names. They are complete under these names and `mark`.

    Args:
      folder: the folder of the files.
      target: the name that the user gave.
      names: the final names.
      mark: what the temporary names have after the final ones.
      identity: a digest of what the files are made of.
      check: is called with the files that will be replaced, and may raise.
    """
    if list(names) == [target]:  # one file: its new name replaces the old file at once
        with discarding(folder, names, mark):
            check(find_shards(folder, target, names))
            folder.rename(target + mark, target)
        return
    with _locked(folder, target):
        with discarding(folder, names, mark):
            other = read_journal(folder, target)  # of a process that ran at the same time
            if other is not None:
                _switch(folder, target, other)
            old = find_shards(folder, target, names)
            check(old)
            for name in names:
                folder.sync(name + mark)
        journal = Journal(tuple(names), tuple(old), mark, identity)
        _write_journal(folder, target, journal)
        _switch(folder, target, journal)


@contextlib.contextmanager
def discarding(folder: Folder, names: Sequence[str], mark: str) -> Iterator[None]:
    """After an error in the block, removes the files under temporary names."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is reported, not one of the clean-up
            folder.remove(name + mark for name in names)
        raise


def _write_journal(folder: Folder, target: str, journal: Journal) -> None:
    name = journal_name(target)
    try:
        folder.write(name, journal.encode())
    except BaseException as error:
        # A store may have written the journal, and only the answer was lost. The new files may be removed only if it
        # is certain that no journal names them.
        try:
            folder.remove([name])
        except Exception:
            add_note(
                error,
                f"bushel: perhaps {folder.shown(name)} was written. If so, the new files count, and Bushel reads them "
                "under their temporary names. Run the same conversion again to complete it.",
            )
            raise error from None
        with discarding(folder, journal.new, journal.mark):
            raise


def _switch(folder: Folder, target: str, journal: Journal) -> None:
    """Does what a journal says. It may have been done in part, so each step can be done again."""
    where = folder.shown(journal_name(target))
    try:
        staged = {name for name in journal.new if folder.exists(name + journal.mark)}
        lost = [name for name in journal.new if name not in staged and not folder.exists(name)]
        if not lost:
            _rename(folder, journal, staged)
            folder.remove([journal_name(target)])
    except BaseException as error:
        add_note(
            error,
            f"bushel: all {len(journal.new)} new files are complete, but some may still have temporary names. {where} "
            "says where they are, and Bushel reads them from there. Run the same conversion again to complete it.",
        )
        raise
    if lost:
        raise DamagedFile(
            f"{folder.shown(lost[0])} is missing: an interrupted conversion had completed it, and it was removed since "
            f"then. Remove {where}, and convert again."
        )


def _rename(folder: Folder, journal: Journal, staged: set[str]) -> None:
    folder.sync("")
    # A file under a final name is an old one as long as the new one still has its temporary name. All old files go
    # before the first new one comes: a program that does not know the journal misses files, but mixes none.
    folder.remove(name for name in journal.old if name not in journal.new or name in staged)
    for name in journal.new:
        if name in staged:
            folder.rename(name + journal.mark, name)
    folder.sync("")


def _locked(folder: Folder, target: str) -> contextlib.AbstractContextManager[None]:
    return folder.locked(f".{target}.lock", lambda: None)
