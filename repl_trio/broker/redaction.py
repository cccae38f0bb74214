"""Taking secrets out of text that leaves the broker: errors, logs, a peer's stderr.

A secret is looked for in each form in which programs write it: as it is, its lines, without its scheme (`Bearer x`),
URL-quoted, with JSON's and Python's escapes, as hexadecimal digits, and in base64, also inside something longer
(`user:secret`). What is found is replaced by one mark that says nothing about it.

Without `json`, `base64` and `urllib`: an idle server that tells its health has secrets, too, and has not loaded them.

Values under `SHORTEST` characters are not looked for: `true`, `8080` or `root` would be found in every sentence, and
what is left would say more about them than the text did.
"""

from __future__ import annotations

import binascii
from collections import deque
from collections.abc import Iterable, Iterator
from typing import AnyStr, Generic

from ..wire import jsontext

MARK = "[redacted]"
SHORTEST = 6
"""characters. Shorter values, and shorter forms of a value, stay in the text."""
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")
"""Bytes that no URL escapes."""
_HINT = 4
"""characters. A beginning of a secret at the end of a text that is being written counts from this length on."""


class Index(Generic[AnyStr]):
    """Forms of secrets, found by their first characters: the time to look for them does not grow with their number."""

    def __init__(self) -> None:
        self._forms: set[AnyStr] = set()
        self._sizes: dict[AnyStr, set[int]] = {}  # by its first characters, how long a form may be
        self._hints: dict[AnyStr, list[AnyStr]] = {}  # by fewer first characters, the forms
        self.longest = 0

    def add(self, form: AnyStr) -> bool:
        """Look for this form, of at least `SHORTEST` characters; whether it is a new one."""
        if form in self._forms:
            return False
        self._forms.add(form)
        self._sizes.setdefault(form[:SHORTEST], set()).add(len(form))
        self._hints.setdefault(form[:_HINT], []).append(form)
        self.longest = max(self.longest, len(form))
        return True

    def occurrences(self, text: AnyStr) -> Iterator[tuple[int, int]]:
        """(start, end) of each, those that overlap included."""
        for start in range(len(text) - SHORTEST + 1 if self._forms else 0):
            for size in self._sizes.get(text[start : start + SHORTEST], ()):
                if size <= len(text) - start and text[start : start + size] in self._forms:
                    yield start, start + size

    def begun(self, text: AnyStr) -> int:
        """How many of the last characters are the beginning of a form, at least `_HINT`; else 0."""
        for start in range(max(0, len(text) - self.longest), len(text) - _HINT + 1):
            for form in self._hints.get(text[start : start + _HINT], ()):
                if len(form) > len(text) - start and form.startswith(text[start:]):
                    return len(text) - start
        return 0


class Redaction:
    """The secrets of a registry. It only ever grows: what was a secret may still stand in a log."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._texts: Index[str] = Index()
        self._bytes: Index[bytes] = Index()
        self.add(values)

    @property
    def longest(self) -> int:
        """Bytes of the longest form; 0 when there is nothing to redact."""
        return self._bytes.longest

    def add(self, values: Iterable[str]) -> None:
        """Look for these values from now on."""
        for value in values:
            for form in _forms(value):
                if len(form) >= SHORTEST and form not in MARK and self._texts.add(form):
                    self._bytes.add(_encoded(form))

    def text(self, text: str) -> str:
        """The text with a mark in the place of each secret; secrets that overlap become one mark."""
        found = _merged(self._texts.occurrences(text))
        return _marked(text, found, MARK) if found else text

    def head(self, text: str, size: int) -> str:
        """The first `size` characters of what a peer says, redacted. What is beyond costs nothing, however long it is.

        Lone surrogates are shown as escapes: many clients' JSON cannot hold them.
        """
        part = text[: size + self.longest]
        found = [(start, end) for start, end in _merged(self._texts.occurrences(part)) if start < size]
        # A secret across the cut is one mark; one that is cut off by the end of `part` begins behind `size`.
        shown = _marked(part[: max([size, *(end for _, end in found)])], found, MARK)
        return shown.encode("utf-8", "backslashreplace").decode("utf-8")

    def raw(self, content: bytes, *, growing: bool = False) -> bytes:
        """The same for bytes. `growing`: more is to come, and a secret that has begun at the end is taken out, too."""
        found = self.spans(content, growing=growing)
        return _marked(content, found, MARK.encode()) if found else content

    def spans(self, content: bytes, *, growing: bool = False) -> list[tuple[int, int]]:
        """Where in the bytes the secrets are, as (start, end), in order and without overlaps."""
        found = list(self._bytes.occurrences(content))
        if growing and (begun := self._bytes.begun(content)):
            found.append((len(content) - begun, len(content)))
        return _merged(found)


class RedactedTail:
    """The last `size` bytes of a stream, redacted when they are read.

    Not on arrival: a secret may come in pieces, and what became a secret afterwards must not be shown either. Its owner
    keeps the unredacted bytes in memory, as the peer that wrote them does.
    """

    def __init__(self, redaction: Redaction, size: int) -> None:
        self._redaction = redaction
        self._size = size
        self._chunks: deque[bytes] = deque()
        self._held = 0

    def feed(self, chunk: bytes) -> None:
        """Take what was written next."""
        if chunk:
            self._chunks.append(chunk)
            self._held += len(chunk)
        # More than is shown, so that a secret across the cut is still recognised.
        while self._chunks and self._held - len(self._chunks[0]) >= self._size + self._redaction.longest:
            self._held -= len(self._chunks.popleft())

    def text(self) -> str:
        """The tail as text, a secret that has only begun taken out, too."""
        content = b"".join(self._chunks)
        cut = max(0, len(content) - self._size)
        spans = self._redaction.spans(content, growing=True)
        for start, end in spans:
            if start < cut < end:
                cut = start  # show the mark, not the rest of the secret
        spans = [(start - cut, end - cut) for start, end in spans if start >= cut]
        return _marked(content[cut:], spans, MARK.encode()).decode("utf-8", "replace")


def _merged(found: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _marked(text: AnyStr, spans: list[tuple[int, int]], mark: AnyStr) -> AnyStr:
    pieces: list[AnyStr] = []
    shown = 0
    for start, end in spans:
        pieces += [text[shown:start], mark]
        shown = end
    pieces.append(text[shown:])
    return text[:0].join(pieces)


def _forms(value: str) -> Iterator[str]:
    for plain in _plain(value):
        content = _encoded(plain)
        yield plain
        for literal in (_UNRESERVED, _UNRESERVED | {0x2F}):
            quoted = "".join(chr(byte) if byte in literal else f"%{byte:02X}" for byte in content)
            yield quoted
            yield _lower_escapes(quoted)
            yield quoted.replace("%20", "+")
        escaped = jsontext.dumps(plain)[1:-1]
        yield escaped
        yield jsontext.dumps(escaped)[1:-1]
        yield "".join(jsontext.dumps(sign)[1:-1] if sign < " " or sign in '"\\' else sign for sign in plain)
        yield repr(plain)[1:-1]
        yield content.hex()
        yield content.hex().upper()
        yield from _base64(content)


def _encoded(text: str) -> bytes:
    """The bytes of a text; of a value of the environment that is no UTF-8 the bytes that it came from."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _plain(value: str) -> set[str]:
    """The value, its lines, what follows a scheme, and what Basic credentials hold."""
    found = {value, value.strip(), *(line.strip() for line in value.splitlines())}
    scheme, _, rest = value.strip().partition(" ")
    if rest and scheme.isalpha():
        token = rest.strip()
        found.add(token)
        if scheme.lower() == "basic":
            credentials = _decoded(token)
            found |= {credentials, credentials.partition(":")[2]}
    return {plain for plain in found if len(plain) >= SHORTEST}


def _decoded(token: str) -> str:
    try:
        return binascii.a2b_base64(token).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


def _lower_escapes(quoted: str) -> str:
    """`%2F` as `%2f`: RFC 3986 wants the first, many programs write the second."""
    first, *others = quoted.split("%")
    return first + "".join(f"%{rest[:2].lower()}{rest[2:]}" for rest in others)


def _base64(content: bytes) -> Iterator[str]:
    """The base64 of the bytes, and the part of it that does not change with what stands before and after them.

    Base64 writes three bytes as four characters, so there are three such parts, one for each place in a group of three.
    """
    for before in range(3):
        encoded = binascii.b2a_base64(bytes(before) + content, newline=False).decode()
        # The characters that carry bits of a neighbour: the first `before + 1` unless it begins a group, and the last
        # one before the padding.
        first = before + 1 if before else 0
        padding = encoded.count("=")
        inner = encoded[first : len(encoded) - padding - 1 if padding else len(encoded)]
        for form in (inner, encoded) if not before else (inner,):
            yield form
            yield form.replace("+", "-").replace("/", "_")
