"""No form of a secret is left in a text, and what is no secret is left as it is."""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_trio.broker.redaction import MARK, SHORTEST, Index, RedactedTail, Redaction

ROOT = Path(__file__).resolve().parents[2]
SECRET = 'p4ss/w"rd+%é-end'
SECRETS = st.text(st.characters(exclude_categories=["Cs"]), min_size=SHORTEST, max_size=40).filter(
    lambda text: text == text.strip() and text not in MARK
)

FORMS = {
    "as it is": SECRET,
    "URL": quote(SECRET),
    "URL, all of it": quote(SECRET, safe=""),
    "URL in lower case": quote(SECRET, safe="").lower(),
    "form": quote_plus(SECRET),
    "JSON": json.dumps(SECRET),
    "JSON in JSON": json.dumps(json.dumps({"token": SECRET})),
    "JSON with its letters": json.dumps(SECRET, ensure_ascii=False),
    "repr": repr(SECRET),
    "hexadecimal": SECRET.encode().hex(),
    "HEXADECIMAL": SECRET.encode().hex().upper(),
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "base64 for URLs": base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_each_form_is_found(form: str) -> None:
    redaction = Redaction([SECRET])
    assert redaction.text(f"before {form} after").startswith("before ")
    assert redaction.text(f"before {form} after").endswith(" after")
    assert MARK in redaction.text(f"before {form} after")
    for left in ("p4ss", "rd+%", quote("é"), SECRET.encode().hex()[4:12]):
        assert left not in redaction.text(f"before {form} after")
    assert redaction.raw(f"before {form} after".encode()) == redaction.text(f"before {form} after").encode()


@given(SECRETS, st.text(max_size=5), st.text(max_size=5))
def test_base64_of_something_around_it(secret: str, user: str, after: str) -> None:
    whole = f"{user}:{secret}{after}".encode("utf-8", "replace")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(whole).decode()
        shown = Redaction([secret]).text(encoded)
        shown = shown.replace(MARK, "")
        # At most the characters at the edges are left, which share their bits with the neighbours.
        assert len(encoded) - len(shown) >= len(secret.encode()) * 4 // 3 - 4


@given(SECRETS, st.text(max_size=30), st.text(max_size=30))
def test_the_secret_is_never_left(secret: str, before: str, after: str) -> None:
    shown = Redaction([secret]).text(before + secret + after)
    assert secret not in shown.replace(MARK, "\0")


def test_halves_of_a_header_and_of_credentials() -> None:
    basic = base64.b64encode(b"robot:hunter2hunter2").decode()
    redaction = Redaction(["Bearer abc123def456", f"Basic {basic}"])
    for text in ("abc123def456", "bearer abc123def456", basic, "robot:hunter2hunter2", "hunter2hunter2"):
        assert "abc123" not in redaction.text(text)
        assert "hunter2" not in redaction.text(text)
        assert basic not in redaction.text(text)


def test_lines_of_a_secret() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\r\nkqhkiG9w0BAQEF\n"
    shown = Redaction([key]).text("it said: MIIEvQIBADANBg\n  kqhkiG9w0BAQEF")
    assert shown == f"it said: {MARK}\n  {MARK}"


def test_secrets_that_overlap_leave_nothing() -> None:
    redaction = Redaction(["abcdef", "defghi", "abcdefghijkl"])
    assert redaction.text("<abcdefghi>") == f"<{MARK}>"
    assert redaction.text("<abcdefghijkl>") == f"<{MARK}>"


def test_short_values_stay() -> None:
    redaction = Redaction(["", "x", "true", "12345"])
    assert redaction.text("x is true 12345") == "x is true 12345"
    assert redaction.longest == 0


def test_what_is_not_secret_stays() -> None:
    text = "a sentence with nothing in it, é and \udcff"
    assert Redaction([SECRET]).text(text) == text
    assert Redaction().raw(b"\xff\x00") == b"\xff\x00"


@pytest.mark.parametrize(
    ("value", "errors"), [("caf\udce9-secret", "surrogateescape"), ("a-\ud800-bc", "surrogatepass")]
)
def test_values_that_are_no_unicode(value: str, errors: str) -> None:
    redaction = Redaction([value])
    assert redaction.text(f"<{value}>") == f"<{MARK}>"
    assert redaction.raw(b"<%b>" % value.encode("utf-8", errors)) == f"<{MARK}>".encode()


def test_it_loads_nothing_heavy() -> None:
    source = (
        "import sys, trio\nbefore = set(sys.modules)\nfrom repl_trio.broker.redaction import Redaction\n"
        "Redaction(['Basic YWJjZGVmZ2g6aWprbG1ub3A=']).text('x' * 99)\n"
        "sys.exit(bool({'json', 'base64', 'urllib.parse'} & (set(sys.modules) - before)))"
    )
    assert subprocess.run([sys.executable, "-c", source], cwd=ROOT, timeout=60).returncode == 0


def test_values_can_be_added_later() -> None:
    redaction = Redaction()
    assert redaction.text(SECRET) == SECRET
    redaction.add([SECRET])
    assert redaction.text(SECRET) == MARK


@given(SECRETS, st.lists(st.integers(0, 200)), st.text(max_size=60), st.text(max_size=60))
def test_a_tail_in_any_chunking(secret: str, cuts: list[int], before: str, after: str) -> None:
    content = (before + secret + after).encode("utf-8", "replace")
    tail = RedactedTail(Redaction([secret]), 1_000)
    edges = sorted({0, len(content), *(cut % (len(content) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        tail.feed(content[start:end])
        shown = tail.text().replace(MARK, "\0")
        assert secret not in shown
    assert MARK in tail.text()


def test_a_secret_that_has_only_begun_is_not_shown() -> None:
    tail = RedactedTail(Redaction([SECRET]), 100)
    tail.feed(b"token: p4ss/w")
    assert tail.text() == f"token: {MARK}"
    tail.feed(b"ork is done")
    assert tail.text() == "token: p4ss/work is done"


@pytest.mark.parametrize("size", range(1, 30))
def test_a_secret_across_the_cut_is_not_half_shown(size: int) -> None:
    tail = RedactedTail(Redaction(["0123456789"]), size)
    for byte in b"first line\n0123456789 and then":
        tail.feed(bytes([byte]))
    shown = tail.text().replace(MARK, "")
    assert not any(digit in shown for digit in "0123456789")
    assert tail.text().endswith(" and then"[-size:])


def test_a_tail_is_bounded() -> None:
    tail = RedactedTail(Redaction([SECRET]), 1_000)
    for _ in range(1_000):
        tail.feed(b"x" * 1_000)
    assert len(tail.text()) == 1_000
    assert tail._held < 10_000


LETTERS = st.text("ab", max_size=60)


@given(st.lists(st.text("ab", min_size=SHORTEST, max_size=12)), LETTERS)
def test_the_index_finds_what_looking_for_one_after_the_other_finds(forms: list[str], text: str) -> None:
    index: Index[str] = Index()
    for form in forms:
        index.add(form)
        assert not index.add(form)
    found = {(start, start + len(form)) for form in forms for start in range(60) if text.startswith(form, start)}
    assert sorted(index.occurrences(text)) == sorted(found)
    begun = [size for form in forms for size in range(4, len(form)) if text.endswith(form[:size])]
    assert index.begun(text) == max(begun, default=0)


def test_thousands_of_secrets_are_looked_for_in_no_more_time_than_one() -> None:
    redaction = Redaction(f"secret-number-{number}" for number in range(5_000))
    begun = time.monotonic()
    for _ in range(100):
        redaction.raw(b"an ordinary line of a log, with nothing in it\n" * 300, growing=True)
    assert time.monotonic() - begun < 20  # 0.3 s, and half a minute where each is looked for


def test_a_mebibyte_and_a_hundred_secrets_take_no_seconds() -> None:
    redaction = Redaction(f"secret-number-{number:03}-{'x' * (number % 7)}" for number in range(100))
    begun = time.monotonic()
    redaction.text("an ordinary line of a log, with nothing in it\n" * 22_000)
    assert time.monotonic() - begun < 20  # 0.2 s; the bound is for what grows with their product
