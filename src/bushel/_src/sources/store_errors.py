"""Errors of object stores: which failed requests are worth repeating, and what to tell the user.

obstore's errors are texts: a first line with the request and the answer, then the details of the connection. Its
classes are few. `object_stores.py` makes the requests.
"""

from __future__ import annotations

import re

from bushel._src.base import redact
from bushel._src.sources.fsspec_files import first_line, missing_file_error

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_SAYS = re.compile(r"<Message>([^<]{1,200})</Message>")
_REPEATED = re.compile(r", after (\d+) retries")
_BROKEN = re.compile(r"HTTP error|error sending request|decoding response body|response body error")
_LOST_UPLOAD = re.compile(r"uploadId=|<Code>NoSuchUpload</Code>")

_RETRY_LATER = "Bushel has repeated the request. Try again later, or raise `retries` in the options of the store"
_STATUSES = {
    400: "the store does not accept the request. Check the address, the region and the other options of the store",
    404: "it is not there any more",
    405: "the store does not allow this request. Check that the address is that of an object store",
    408: f"the store has waited too long for the request. {_RETRY_LATER}",
    409: "another process changes the same object. Let only one process write to an address, and run this again",
    411: "the store does not accept this kind of upload",
    412: "the object has changed meanwhile. Let only one process write to an address, and run this again",
    413: "the store does not accept files of this size. Write smaller files (more shards)",
    416: "the object is shorter than it was when it was opened. Make the source again",
    429: f"the store gets too many requests. {_RETRY_LATER}, and use fewer workers",
    501: "the store does not know this request. Check that the address is that of an object store",
    503: f"the store is overloaded. {_RETRY_LATER}, and use fewer workers",
    507: "the store has no room. Remove objects, or ask for a larger quota",
}
_CONNECTIONS = (
    (r"dns error", "the name of the server cannot be found. Check the address, the region and the network"),
    (r"ConnectionRefused", "no server answers at this address. Check the endpoint and the network"),
    (
        r"certificate|InvalidContentType|InvalidMessage|UnknownIssuer|AlertReceived|\bTls\b",
        "the encrypted connection (TLS) cannot be made. Check that the endpoint speaks https, and its certificate",
    ),
    (r"kind: Timeout|TimedOut", "the server did not answer in time. Raise `timeout_s` or `retries` in the options"),
    (r"IncompleteBody|UnexpectedEof|body error|response body", f"the answer ended early. {_RETRY_LATER}"),
    (r"ConnectionReset|BrokenPipe|Interrupted", f"the server broke the connection. {_RETRY_LATER}"),
)


def is_panic(failure: BaseException) -> bool:
    """Whether obstore, which is written in Rust, has panicked. Python has no class for that which could be imported."""
    return type(failure).__name__ == "PanicException"


def is_worth_repeating(failure: BaseException) -> bool:
    """Whether a connection broke and obstore did not repeat the request, because it may have been done.

    Every request of ours can be done twice. So we repeat it, an upload as a whole.
    """
    text = str(failure)
    return is_unclear_upload(failure) or (bool(_BROKEN.search(first_line(failure))) and not _REPEATED.search(text))


def is_unclear_upload(failure: BaseException) -> bool:
    """Whether an upload in parts ended unclear: its end was requested, and the store does not know the upload now.

    The answer to the first request was lost then, and obstore's second request, or its clean-up, fails.
    """
    return isinstance(failure, FileNotFoundError) and bool(_LOST_UPLOAD.search(str(failure)))


def explain_failure(failure: BaseException, name: str, secrets: list[str], deed: str) -> BaseException:
    """The error to raise in place of an error of obstore, without the secrets that its text may contain.

    `deed` is the verb of the message: "read", "listed", "written" or "removed".
    """
    if is_panic(failure):
        return OSError(
            f"{name} could not be {deed}: obstore has failed ({first_line(redact.scrub(failure, secrets))}). Check the "
            "options of the store, or install another version of obstore."
        )
    if not isinstance(failure, Exception):
        return failure
    cause = redact.scrub(failure, secrets)
    text = str(cause)
    code = _CODE.search(text)
    if code and code[1] == "NoSuchBucket":
        return missing_file_error(name, deed, "the bucket does not exist")
    if is_unclear_upload(failure):
        error = OSError(
            f"{name} could not be written: the store has received all parts, but no answer says that it has put them "
            "together. Write it again; raise `timeout_s` in the options of the store if this happens again."
        )
    elif isinstance(failure, FileNotFoundError) or _find_status(text) == 404:
        return missing_file_error(name, deed)
    elif type(failure).__name__ == "UnauthenticatedError" or _find_status(text) == 401:
        return PermissionError(
            f"{name} may not be {deed}: the store does not accept the credentials{_cite(text)}. Check the key or token "
            "in the environment or in the options of the store: it may be missing, wrong or expired."
        )
    elif type(failure).__name__ == "PermissionDeniedError" or _find_status(text) == 403:
        return PermissionError(
            f"{name} may not be {deed}: the store refuses it{_cite(text)}. Use credentials that are allowed to, or ask "
            "the owner of the store."
        )
    elif "empty path segment" in first_line(cause):
        return ValueError(
            f"{name}: {first_line(cause)}. Objects with an empty part (//) in their names can be neither read nor "
            "listed. Rename them, or name a folder without such objects."
        )
    else:
        error = OSError(f"{name} could not be {deed}: {_describe(text)}.")
    error.__cause__ = cause
    return error


def _find_status(text: str) -> int | None:
    status = _STATUS.search(text)
    return int(status[1]) if status else None


def _describe(text: str) -> str:
    """What went wrong, and the way out."""
    status = _find_status(text)
    if status in _STATUSES:
        return _join(_STATUSES[status], _cite(text))
    if (status is not None and status >= 500) or "<Code>InternalError</Code>" in text:
        return _join(f"the store failed. {_RETRY_LATER}", _cite(text))
    if "incorrectly configured region" in text:
        return "the store sends the request elsewhere. Check the region and the endpoint in the options of the store"
    if status is None:
        for pattern, sentence in _CONNECTIONS:
            if re.search(pattern, text):
                return sentence
    return first_line(Exception(text)).rstrip(".")


def _join(sentence: str, cited: str) -> str:
    """Puts the store's own words behind the cause, before the way out."""
    cause, dot, way_out = sentence.partition(". ")
    return f"{cause}{cited}{dot}{way_out}"


def _cite(text: str) -> str:
    """The status of the answer and the store's own words, in brackets; empty if there are none."""
    code, says = _CODE.search(text), _SAYS.search(text)
    parts = [str(_find_status(text) or ""), code[1] if code else ""]
    head = " ".join(part for part in parts if part)
    words = f"{head}: {says[1].strip().rstrip('.')}" if says else head
    return f" ({words})" if words else ""
