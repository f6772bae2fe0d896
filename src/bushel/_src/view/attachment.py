"""The report of another program: from the address of its `bushel.serve_report`, or from the file of a profile."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from bushel._src.base import redact
from bushel._src.reporting.history import load_snapshot
from bushel._src.reporting.server import PATH, TOKEN_HEADER

_TIMEOUT_S = 5.0
_MOST_BYTES = 16 << 20


class Attachment:
    """A running program, or the file of a profile that `bushel bench` has written.

    Args:
      place: the URL that `bushel.serve_report(it).url` is, or the path of a file.
    """

    has_begun = True
    comes_first = False

    def __init__(self, place: str | os.PathLike[str]):
        text = os.fspath(place)
        self.is_live = text.startswith(("http://", "https://"))
        self._path = None if self.is_live else text
        if not self.is_live:
            self.name = redact.base_name(text)
            self.read()  # a file that is no profile is an error at once
            return
        parts = urllib.parse.urlsplit(text)
        token = urllib.parse.parse_qs(parts.fragment).get("token", [""])[0]
        if parts.scheme != "http" or not parts.hostname or not token or parts.username is not None:
            raise ValueError(
                "--attach takes the URL that bushel.serve_report(it).url is, with its token: "
                "http://127.0.0.1:8765/#token=..."
            )
        self.name = f"the program at {parts.netloc}"
        self._token = token
        self._url = urllib.parse.urlunsplit(("http", parts.netloc, PATH, "", ""))
        # A proxy would get the token, and could not reach this machine anyway.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())

    def read(self) -> dict[str, Any]:
        """The report as it is now: see `bushel._src.reporting.history.History.describe`."""
        if self._path is not None:
            with open(self._path, "rb") as file:
                return load_snapshot(file.read(_MOST_BYTES), redact.show(self._path))
        request = urllib.request.Request(self._url, headers={TOKEN_HEADER: self._token})
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return load_snapshot(answer.read(_MOST_BYTES), self.name)
        except urllib.error.HTTPError as error:
            raise ConnectionError(f"{self.name} refuses: {_read_refusal(error)}") from error
        except OSError as error:
            why = error.reason if isinstance(error, urllib.error.URLError) else error
            raise ConnectionError(f"{self.name} does not answer ({why}). It may have ended.") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for one address alone."""

    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        return None


def _read_refusal(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(1000))["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"status {error.code}"
