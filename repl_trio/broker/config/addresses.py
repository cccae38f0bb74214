"""URLs of peers: whether one can be used, and which parts of it must not be shown."""

from __future__ import annotations

from .entries import Refused

# urllib.parse costs several milliseconds, and most registries hold no URL: each function imports it.

_SCHEMES = {"http": ("http", "https"), "ws": ("ws", "wss")}
_KEY_LENGTH = (
    20  # a path segment this long, with letters and digits, is taken for a key: some services put theirs there
)


def check_url(field: str, url: str, kind: str) -> str:
    """The URL as it will be used, for a peer of type `kind`. Raises `Refused`, which holds no part of it."""
    if any(not c.isprintable() or c.isspace() for c in url):
        raise Refused(field, "holds a space or a control character")
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise Refused(field, "is not a URL (its host or port cannot be read)") from None
    if parts.scheme not in _SCHEMES[kind]:
        known = " or ".join(f"{scheme}://" for scheme in _SCHEMES[kind])
        raise Refused(field, f"must begin with {known} for a peer of type {kind}")
    if not host or port == 0:
        raise Refused(field, "names no host and port that could be reached")
    return url


def origin(url: str) -> str:
    """What may be shown of a URL: scheme, host and port."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}"


def url_secrets(url: str) -> set[str]:
    """User and password, values of the query, the fragment and path segments that look like keys; as is and decoded."""
    from urllib.parse import parse_qsl, unquote, urlsplit

    parts = urlsplit(url)
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    found = [user, password, parts.fragment]
    found += [part.partition("=")[2] or part for part in parts.query.split("&")]
    found += [value for _, value in parse_qsl(parts.query)]
    for segment in parts.path.split("/"):
        if len(segment) >= _KEY_LENGTH and any(map(str.isdigit, segment)) and any(map(str.isalpha, segment)):
            found.append(segment)
    return {form for text in found if text for form in (text, unquote(text))}
