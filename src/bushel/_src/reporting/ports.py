"""Ports that servers of Bushel's listen on: errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

from bushel._src.base import checks

_HIGHEST = 65535


@contextlib.contextmanager
def taking_port(host: str, port: int) -> Iterator[None]:
    """Checks a port, and explains why the block cannot listen on it.

    >>> with taking_port("127.0.0.1", 70_000):
    ...     pass
    Traceback (most recent call last):
    ValueError: port must be a number from 0 to 65535, where 0 takes a free one; got 70000.
    """
    if not 0 <= checks.integer(port, "port") <= _HIGHEST:
        raise ValueError(f"port must be a number from 0 to {_HIGHEST}, where 0 takes a free one; got {port}.")
    try:
        yield
    except socket.gaierror as error:
        raise OSError(f"{host} is not an address of this machine: {error.strerror}.") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"Port {port} of {host} is in use, perhaps by another page of Bushel's. Choose another port, or 0 for "
                "a free one."
            ) from error
        if error.errno == errno.EACCES:
            raise PermissionError(
                f"Port {port} of {host} may not be used by this user: choose one above 1023."
            ) from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise OSError(f"{host} is not an address of this machine.") from error
        raise
