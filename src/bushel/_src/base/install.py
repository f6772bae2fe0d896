"""How a user installs Bushel: the name of the distribution, and the command in error messages.

README.md and docs/install.md say the same in their own words. A test compares them with `INSTALLED_FROM`.
"""

from __future__ import annotations

DISTRIBUTION = "bushel-data"
"""The name for pip. The distribution `bushel` on PyPI is a different program, by other authors."""

INSTALLED_FROM = "path/to/bushel"
"""What pip gets: the folder of a clone, since nothing is on PyPI yet. The first release sets it to `DISTRIBUTION`."""


def install_command(*extras: str) -> str:
    """The command that installs Bushel with these extras.

    >>> install_command("jax", "orbax")
    "pip install 'path/to/bushel[jax,orbax]'"
    """
    return f"pip install '{INSTALLED_FROM}[{','.join(extras)}]'"
