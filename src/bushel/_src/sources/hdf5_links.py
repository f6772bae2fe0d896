"""Objects of an HDF5 file that lie in other files: external storage, external links, virtual datasets.

An HDF5 file can name any other file of the machine, and the HDF5 library reads it without a word. So a data set of a
stranger could bring private files into records. `hdf5.py` reads what passes these checks.
"""

from __future__ import annotations

from typing import Any

from bushel._src.base.errors import OtherFile
from bushel._src.sources.optional_packages import import_package

_HERE = "."  # the name of the file itself in a virtual dataset


def check_inside(item: Any, name: str, root: Any) -> None:
    """Raises OtherFile if a dataset or group is not wholly in the file that was opened.

    Args:
      item: the dataset or group, which a link may have led to.
      name: its name, for the message.
      root: the file that was opened, or a group that was checked.
    """
    _check(item, name, root, set())


def check_link(group: Any, name: str) -> None:
    """Raises OtherFile if an entry of a group is a link to another file. That file is not opened."""
    h5py = import_package("h5py", "hdf5", "HDF5 files")
    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink):
        raise _error(f"{name!r} is a link to {link.path!r} of the file {link.filename!r}")


def _check(item: Any, name: str, root: Any, seen: set[str]) -> None:
    h5py = import_package("h5py", "hdf5", "HDF5 files")
    if h5py.h5o.get_info(item.id).fileno != h5py.h5o.get_info(root.id).fileno:
        raise _error(f"{name!r} lies in the file {item.file.filename!r}, to which a link leads")
    if not isinstance(item, h5py.Dataset):
        return
    properties = item.id.get_create_plist()
    if properties.get_external_count():
        raise _error(f"the values of {name!r} lie in the file {item.external[0][0]!r}")
    if properties.get_layout() != h5py.h5d.VIRTUAL:
        return
    for source in item.virtual_sources():
        if source.file_name != _HERE:
            raise _error(f"{name!r} is a virtual dataset with values of the file {source.file_name!r}")
        if "%" in source.dset_name:
            raise _error(f"{name!r} is a virtual dataset of all datasets {source.dset_name!r}, which cannot be checked")
        if source.dset_name not in seen:
            seen.add(source.dset_name)
            inner = item.file.get(source.dset_name)
            if inner is not None:  # otherwise its values are the fill value
                _check(inner, source.dset_name, root, seen)


def _error(what: str) -> OtherFile:
    return OtherFile(
        f"{what}. A file of a stranger could name any file of this machine, so Bushel does not follow such names. If "
        "you trust it, pass allow_other_files=True to HDF5DataSource, or write all values into one file (with "
        "h5repack, or h5py's `copy` with expand_external=True)."
    )
