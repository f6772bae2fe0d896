"""Addresses, options and texts without their secrets: the one place that decides what may be shown.

Every name of a file that reaches a message, a repr, a log, a state or the disk goes through here. What opens a file
keeps the address as it was given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from bushel._src.base.late_imports import Lazy
from bushel._src.base.state_names import in_states

T = TypeVar("T")

# Loaded when they are used: all processes of a pool import this module, and few have anything to hide.
hashlib = Lazy("hashlib")
urls = Lazy("urllib.parse")


class _Pattern:
    """A regular expression that is compiled when it is first used: most processes that import Bushel never need one."""

    def __init__(self, text: str, flags: int = 0):
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        value = self.__dict__[name] = getattr(re.compile(self._text, self._flags), name)
        return value


HIDDEN = "..."
"""What stands in the place of a secret."""

_SCHEME = _Pattern(r"([A-Za-z][A-Za-z0-9+.-]*):/{1,3}")
_ENCODED = r"%(?:25)*"
_IN_TEXT = _Pattern(
    rf"\b[A-Za-z][A-Za-z0-9+.-]{{0,30}}(?::|{_ENCODED}3A)(?:/|{_ENCODED}2F){{2}}[^\s\"'<>`]*[^\s\"'<>`.,;:)\]}}]",
    re.IGNORECASE,
)
_CHAIN = _Pattern(r"::(?=[A-Za-z][A-Za-z0-9+.-]{0,30}:[/:])")
_WEB = ("http", "https")
_CONTAINER_FIRST = ("abfs", "abfss", "adl", "az", "azure", "wasb", "wasbs")
"""Schemes that write container@account, where nothing before the @ is secret."""
_AT = r"(?:@|%(?:25)*40)"
_USER = _Pattern(rf"(?!\[)([^/?#]*|[^/?#:]*:(?!\d*(?:[/?#]|$)).*){_AT}", re.IGNORECASE | re.DOTALL)
"""What stands before the host. Secrets of S3 often hold a slash, which people forget to encode."""
_COLON = _Pattern(r":|%(?:25)*3A", re.IGNORECASE)
_MARKS = _Pattern(r"[?&#=;]|%(?:25)*(?:3F|26|23|3D|3B)", re.IGNORECASE)
_QUERY = _Pattern(r"[?#]|%(?:25)*(?:3F|23)", re.IGNORECASE)
_EQUALS = _Pattern(r"=|%(?:25)*3D", re.IGNORECASE)
"""What makes a query outside of the web, where the names of objects may hold a question mark."""
_ORACLE = _Pattern(r"(oraclecloud\.com/p/)[^/]+")

_IN_PATH = _Pattern(r";([^/;=]+)=[^/;]*")
"""Parameters inside of a path."""

_SIGNING = _Pattern(
    r"x-(?:amz|goog|oss|ms|cos|obs)-.*|q-.*|s[vspetri]|srt|spr|sip|sdd|ske|skt|sks|skv|skoid|sktid|saoid|suoid|scid|ses"
    r"|key|\w*(?:token|signature|secret|password|credential)s?|(?:aws|oss|google)?access(?:key)?id"
    r"|(?:.*[-_])?(?:sig|sign|signature|token|auth|tempauth|authorization|oauth|credential|expires?|expiry|exp|policy"
    r"|secret|password|hmac|nonce|jwt|session|verify|timestamp|hdnea|hdnts|rlkey|key-pair-id|access_?key|api_?key)"
    r"(?:[-_].*)?",
    re.IGNORECASE,
)
"""Parameters that say who may read, and until when. They change whenever an address is signed again."""

_NAMES = (
    r"x-(?:amz|goog|ms|oss)-[\w-]{1,40}|aws_?access_?key_?id|google_?access_?id|[\w-]{0,40}secret[\w-]{0,40}|passw(?:or)?d|pwd"
    r"|passphrase|[\w-]{0,40}access[_-]?key(?:[_-]?id)?|[\w-]{0,40}account[_-]?key|[\w-]{0,40}api[_-]?key|[\w-]{0,40}private[_-]?key"
    r"|(?:sas|session|security|access|bearer|auth|refresh|id)[_-]?token|shared_?access_?(?:signature|key)|signature|sig"
    r"|credentials?"
)
_PAIR = _Pattern(
    rf"(?:(?<![A-Za-z0-9_-])|(?<=3F)|(?<=26)|(?<=23))({_NAMES})([\"']?\s*(?:=|:|%(?:25)*3D)\s*[\"']?)([^\s\"'&;,<>)}}\]]{{4,}})",
    re.IGNORECASE,
)
_HEADER = _Pattern(r"(authorization[\"']?\s*[:=]\s*[\"']?)[^\"'\n]+", re.IGNORECASE)
_BEARER = _Pattern(r"\b((?:Bearer|SharedKey|AWS4-HMAC-SHA256)\s+)[^\s\"',;<>]+")
_KEY_ID = _Pattern(r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}\b")
_ELEMENT = _Pattern(r"<(\w{0,40}(?:Sign|Token|Canonical|Secret|AccessKey)\w{0,40})>[^<]*")
"""What S3 sends when a signature is wrong: the signature, and what should have been signed."""

_HARMLESS = _Pattern(
    r"(?:aws_|azure_|google_|client_)?(?:region|default_region|endpoint|endpoint_url|endpoint_override|bucket|"
    r"bucket_name|container|account_name|project|timeout_s|retries|cache_dir|cache_bytes|cache_folder|protocol|"
    r"requester_pays|anon|allow_http|skip_signature|use_ssl|host|port)",
    re.IGNORECASE,
)
"""Options whose values stay readable in messages of stores: without the endpoint nobody finds what is wrong."""
_REPEATED = _Pattern(r"(?:\.{3}){2,}")
_LONG = 6
"""Shorter values of parameters, such as `sp=r`, are words: to hide them would take them out of all texts."""
_DEPTH = 6


def show(path: str | os.PathLike[str]) -> str:
    """Return a path or URL as messages name it: without user and password, query and fragment.

    >>> show("https://me:secret@host/train.bag?X-Amz-Signature=ab12")
    'https://...@host/train.bag?...'
    >>> show("s3://bucket/part-?.bag"), show("/data/50%?.bag")
    ('s3://bucket/part-?.bag', '/data/50%?.bag')
    """
    return "::".join(map(_shown, _split_chain(os.fspath(path))))  # fsspec chains: zip://x.csv::https://...


def remove_query(path: str) -> str:
    """Return a path or URL that tells where a file lies, and stays the same when the address is signed again.

    >>> remove_query("https://host/cat/1.jpg?sig=ab12")
    'https://host/cat/1.jpg'
    """
    return "::".join(_cut(part)[0].replace(f"://{HIDDEN}@", "://", 1) for part in _split_chain(path))


def identify_path(path: str) -> str:
    """Return a path or URL for fingerprints: as `remove_query`, with a digest of the parameters that choose an
    object.
    """
    return "::".join(remove_query(part) + _choice(_cut(part)[1]) for part in _split_chain(path))


def base_name(path: str) -> str:
    """Return the last part of a path or URL, as messages show it.

    >>> base_name("https://host/train.bag?X-Amz-Credential=AKIA/2025")
    'train.bag'
    """
    return remove_query(path).rstrip("/").rpartition("/")[2]


def object_name(path: str) -> str:
    """Return the last part of a path or URL for fingerprints: the same for every signature of one object.

    Parameters that choose an object (`?id=3`, `?versionId=x`) are part of it, as a digest; those that sign are not.

    >>> object_name("https://host/get?id=3&sig=ab12") == object_name("https://host/get?sig=cd34&id=3")
    True
    >>> object_name("https://host/get?id=3") == object_name("https://host/get?id=4")
    False
    """
    return "::".join(map(_object_name, _split_chain(path)))


def clean(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text that others wrote, such as the message of a store, without the secrets that can be recognised in
    it.

    Args:
      text: any text.
      secrets: what is known to be secret, as `secrets_of` finds it. Encoded forms of it are hidden too.

    >>> clean("GET http://h/x?sig=ab12cd34 failed: AccountKey=ZZZZZZ;")
    'GET http://h/x?... failed: AccountKey=...;'
    """
    for secret in secrets:
        text = _pattern(secret).sub(HIDDEN, text)
    if not _may_match(text):
        return text
    text = _IN_TEXT.sub(lambda found: show(_decoded(found.group())), text)
    return _REPEATED.sub(HIDDEN, _without_pairs(text))


def secrets_of(path: Any = "", options: Any = None) -> list[str]:
    """Return what a text about this path and these options of its store must not show; the longest first."""
    found = set(_of_url(os.fspath(path)) if isinstance(path, (str, os.PathLike)) else ())
    found.update(_of_options(options or {}, 0))
    found.discard("")
    return sorted(found, key=len, reverse=True)


def scrub(error: BaseException, secrets: Iterable[str] = ()) -> BaseException:
    """Return an exception without secrets in its text, its notes, and the exceptions that it is chained to.

    Exceptions are changed in place. One that makes its text in a way of its own is replaced by another that says the
    same.
    """
    return _scrubbed(error, list(secrets), {})


def call_guarded(call: Callable[[], T], path: Any, options: Any) -> T:
    """Return what a call of another library gives.

    If it fails, its error comes without the secrets of path and options.
    """
    try:
        return call()
    except BaseException as error:
        failure = error
    # Outside of `except`: Python would chain the original to whatever is raised there.
    raise scrub(failure, secrets_of(path, options))


@in_states("storage_options")
class Options(dict[str, Any]):
    """Options of a store. As text they are their names alone.

    >>> Options(secret="xyz", region="eu")
    {secret: ..., region: ...}
    """

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{clean(str(name))}: {HIDDEN}" for name in self) + "}"

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return Options, (dict(self),)


def _split_chain(path: str) -> list[str]:
    """Return the parts of a chain of fsspec; a single path or URL is the only part."""
    return _CHAIN.split(path) if "::" in path else [path]


def _object_name(path: str) -> str:
    place, query = _cut(path)
    name = urls.unquote(place) if place.lower().startswith(_WEB) else place
    return clean(name.rpartition("/")[2]) + _choice(query)


def _choice(query: str) -> str:
    """Return a digest of the parameters that choose an object; nothing where there are none."""
    chosen = sorted(entry for entry in _parameters(query) if not _SIGNING.fullmatch(entry[0]))
    return f"?{hashlib.blake2b(repr(chosen).encode(), digest_size=8).hexdigest()}" if chosen else ""


def _shown(url: str) -> str:
    place, query = _cut(url)
    return _without_pairs(place) + (f"?{HIDDEN}" if query else "")


def _cut(url: str) -> tuple[str, str]:
    """Return an address without user and password, and its query and fragment. A local path is all address."""
    found = _SCHEME.match(url) if ":" in url else None
    if found is None:
        return url, ""
    scheme, rest = found.group(1).lower(), url[found.end() :]
    if user := _user(scheme, rest):
        rest = f"{HIDDEN}{rest[len(user) :]}"
    if scheme in _WEB:
        rest = rest.partition("#")[0]  # servers never get to see it
    begin = _QUERY.search(rest)
    query = "" if begin is None else rest[begin.start() :]
    if scheme not in _WEB and not _EQUALS.search(query):
        query = ""
    place = _ORACLE.sub(rf"\1{HIDDEN}", rest[: len(rest) - len(query)])
    return found.group() + _IN_PATH.sub(_hide_signing, place), query


def _hide_signing(found: re.Match[str]) -> str:
    return f";{found.group(1)}={HIDDEN}" if _SIGNING.fullmatch(found.group(1)) else found.group()


def _decoded(url: str) -> str:
    """Return a URL whose scheme was encoded, as those are that stand in the query of another."""
    while _SCHEME.match(url) is None and (plain := urls.unquote(url)) != url:
        url = plain
    return url


def _user(scheme: str, rest: str) -> str:
    """Return what stands before the @ of an address, if it may be secret."""
    found = _USER.match(rest)
    if found is None or (scheme.lower() in _CONTAINER_FIRST and not _COLON.search(found.group(1))):
        return ""
    return found.group(1)


def _parameters(query: str) -> list[tuple[str, str]]:
    while query and query[0] not in "?#":
        query = urls.unquote(query)
    return urls.parse_qsl(query[1:], keep_blank_values=True)


_NEEDED = (":", "%", "<", "Bearer", "SharedKey", "AWS4", "AKIA", "ASIA", "......")
_NEEDED_BEFORE_EQUALS = ("authorization", "x-", "key", "access", "secret", "pass", "pwd", "token", "sig", "credential")


def _may_match(text: str) -> bool:
    """Return whether a pattern of `clean` or `_without_pairs` could match. Each needs one of the texts above.

    Most texts need no pattern at all, and to compile them takes 2 ms: as long as all the rest of a small job.
    """
    if any(needed in text for needed in _NEEDED):
        return True
    return "=" in text and any(needed in text.casefold() for needed in _NEEDED_BEFORE_EQUALS)


def _without_pairs(text: str) -> str:
    if not _may_match(text):
        return text
    text = _HEADER.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _PAIR.sub(rf"\1\2{HIDDEN}", text)
    text = _ELEMENT.sub(rf"<\1>{HIDDEN}", text)
    return _KEY_ID.sub(HIDDEN, text)


def _pattern(secret: str) -> _Pattern:
    """Return a secret as it is, and as it reads in URLs and in headers."""
    import base64  # for errors alone: `import bushel` stays light

    quoted = {
        urls.quote(secret),
        urls.quote(secret, safe=""),
        urls.quote_plus(secret),
        urls.quote(urls.quote(secret, safe=""), safe=""),
        urls.unquote(secret),
        base64.b64encode(secret.encode(errors="replace")).decode(),
        secret.encode("unicode_escape").decode(),
    } - {secret, ""}
    choices = "|".join([re.escape(secret), *(f"(?i:{re.escape(text)})" for text in sorted(quoted, key=len)[::-1])])
    return _Pattern(choices if len(secret) >= _LONG else rf"(?<![A-Za-z0-9])(?:{choices})(?![A-Za-z0-9])")


def _of_url(text: str) -> Iterator[str]:
    for url in _split_chain(text):
        found = _SCHEME.match(url)
        if found is None:
            continue
        user = _user(found.group(1), url[found.end() :])
        yield user
        yield from (part for part in _COLON.split(user, maxsplit=1)[1:])
        yield from (part for part in _COLON.split(user, maxsplit=1)[:1] if len(part) >= _LONG)
        query = _cut(url)[1]
        yield from (query[1:], url.partition("#")[2] if len(url.partition("#")[2]) >= _LONG else "")
        yield from (value for _, value in _parameters(query) if len(value) >= _LONG)
        yield from (part for part in _MARKS.split(query) if len(part) >= _LONG)


def _of_options(value: Any, depth: int) -> Iterator[str]:
    if depth > _DEPTH:
        return
    if isinstance(value, str):
        if len(value) > 2 and not value.isdigit() and value.lower() not in ("true", "false", "none"):
            yield value
        yield from _of_url(value)
    elif isinstance(value, (bytes, bytearray)):
        yield bytes(value).decode(errors="replace")
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            if isinstance(name, str) and _HARMLESS.fullmatch(name) and isinstance(entry, (str, os.PathLike)):
                yield from _of_url(os.fspath(entry))
            else:
                yield from _of_options(entry, depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for entry in value:
            yield from _of_options(entry, depth + 1)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from _of_options(dict(vars(value)), depth + 1)


def _scrubbed(error: BaseException, secrets: list[str], done: dict[int, BaseException]) -> BaseException:
    if id(error) in done:
        return done[id(error)]
    done[id(error)] = result = _reworded(error, secrets)
    if isinstance(result, BaseExceptionGroup):
        for inner in result.exceptions:  # a group cannot be given others: those inside are changed in place
            _scrubbed(inner, secrets, done)
    for link in ("__cause__", "__context__"):
        linked = getattr(error, link)
        if linked is not None:
            suppressed = error.__suppress_context__
            setattr(result, link, _scrubbed(linked, secrets, done))
            result.__suppress_context__ = suppressed
    return result


def _reworded(error: BaseException, secrets: list[str]) -> BaseException:
    """Return the exception itself with clean words, or one in its place."""
    notes = [clean(str(note), secrets) for note in getattr(error, "__notes__", ())]
    try:
        said = str(error)
        if notes != list(getattr(error, "__notes__", ())):
            error.__notes__ = notes
        if _is_clean([said, error.args, vars(error)], secrets):
            return error
        error.args = tuple(_cleaned(entry, secrets) for entry in error.args)
        for name in (*vars(error), *(("strerror", "filename", "filename2") if isinstance(error, OSError) else ())):
            if isinstance(text := getattr(error, name, None), (str, bytes)):
                setattr(error, name, clean(os.fsdecode(text), secrets))
        if _is_clean([str(error), error.args, vars(error)], secrets):
            return error
        said = clean(said, secrets)
    except Exception:  # of its own `__str__`
        said = "(its `__str__` failed)"
    kind = next((kind for kind in (OSError, ValueError, ImportError) if isinstance(error, kind)), RuntimeError)
    instead = kind(f"{type(error).__name__}: {said}")
    for note in notes:
        instead.add_note(note)
    return instead.with_traceback(error.__traceback__)


def _is_clean(value: Any, secrets: list[str]) -> bool:
    return (text := repr(value)) == clean(text, secrets)


def _cleaned(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        return clean(value, secrets)
    return value if _is_clean(value, secrets) else clean(repr(value), secrets)
