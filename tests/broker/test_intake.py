"""What a peer prints: messages are found, everything else is counted and remembered, in any chunking."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_trio.broker.peer.intake import Damaged, Intake, Message
from repl_trio.limits import Limits

SMALL = Limits.overridden({"peer_message_bytes": "1000"})


def line(**members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n"


def fed(*chunks: bytes, limits: Limits = SMALL) -> tuple[list[Message | Damaged], Intake]:
    intake = Intake(limits)
    return [found for chunk in chunks for found in intake.feed(chunk)] + intake.finish(), intake


def plain(found: list[Message | Damaged]) -> list[object]:
    return [(one.id, one.code) if isinstance(one, Damaged) else one for one in found]


def test_messages_of_each_kind_come_through_as_they_are() -> None:
    result = {"content": [{"type": "x-new", "n": 12345678901234567890}], "structuredContent": None, "f": 0.1}
    sent = [
        line(id=1, result=result),
        line(id="a", error={"code": -1, "message": "no", "data": [None]}),
        line(method="notifications/x", params={"a": 1}),
        line(id=0, method="ping"),
    ]
    found, intake = fed(b"".join(sent))
    assert found == [json.loads(one) for one in sent]
    assert not intake.junk


@pytest.mark.parametrize(
    "stray",
    [
        b"Server listening on stdio\n",
        b"{not json\n",
        b'{"level":"info","msg":"up"}\n',
        b"[1, 2]\n",
        b"\xff\xfe\n",
        b'{"jsonrpc":"2.0"}\n',
        b'{"jsonrpc":"2.0","id":1.5,"result":{}}\n',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}\n',
        b'{"jsonrpc":"2.0","method":"x","params":[1]}\n',
        b'{"jsonrpc":"2.0","id":true,"method":"x"}\n',
    ],
)
def test_what_is_no_message_is_skipped_and_remembered(stray: bytes) -> None:
    found, intake = fed(stray)
    assert found == []
    assert stray.strip()[:20] in bytes(intake.junk)
    assert intake.stray >= len(stray) - 1
    found, intake = fed(stray, line(id=1, result={}))
    assert found == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
    assert intake.stray == 0


def test_blank_lines_and_a_byte_order_mark_are_nothing() -> None:
    found, intake = fed(b"\n  \r\n\xef\xbb\xbf" + line(id=1, result={}) + b"\n")
    assert len(found) == 1
    assert not intake.junk


def test_a_batch_is_its_messages() -> None:
    batch = [{"jsonrpc": "2.0", "id": 1, "result": {}}, {"jsonrpc": "2.0", "method": "m"}]
    assert fed(json.dumps(batch).encode() + b"\n")[0] == batch


def test_a_batch_of_hundreds_is_junk_and_one_message_makes_a_batch() -> None:
    many = json.dumps([{"jsonrpc": "2.0", "method": "m"}] * 257).encode() + b"\n"
    found, intake = fed(many, limits=Limits())
    assert (found, intake.stray) == ([], len(many))
    found, intake = fed(json.dumps([7, {"jsonrpc": "2.0", "method": "m"}, None]).encode() + b"\n")
    assert found == [{"jsonrpc": "2.0", "method": "m"}]
    assert intake.stray == 0


@pytest.mark.parametrize(
    "text",
    [
        '{"jsonrpc":"2.0","id":7,"result":{"v":NaN}}',
        '{"jsonrpc":"2.0", "id" : 7, "result":{"id":8,"v":}',
        '{"result":{"id":8,"v":Infinity},"jsonrpc":"2.0","id":7}',
        '{"jsonrpc":"2.0","id":7,"result":[]}',
        '{"jsonrpc":"2.0","id":7,"result":null}',
        '{"jsonrpc":"2.0","id":7,"error":"bad"}',
        '{"jsonrpc":"2.0","id":7}',
    ],
)
def test_an_answer_that_cannot_be_used_reaches_its_caller(text: str) -> None:
    assert plain(fed(text.encode() + b"\n")[0]) == [(7, "PROTOCOL_ERROR")]


@pytest.mark.parametrize("form", ['{"jsonrpc":"2.0","id":7,"result":{"t":"%s"}}', '{"result":{"t":"%s"},"id":7}'])
@pytest.mark.parametrize("more", [0, 1, 5000])
def test_an_answer_is_taken_up_to_the_limit_and_no_further(form: str, more: int) -> None:
    text = form.replace('"id"', '"jsonrpc":"2.0","id"') if '"jsonrpc"' not in form else form
    text = text % ("x" * (1000 - len(text) + 2 + more))
    found, intake = fed(text.encode() + b"\n", line(id=9, result={}))
    assert plain(found[:1]) == ([(7, "LIMIT_REACHED")] if more else [json.loads(text)])
    assert plain(found[1:]) == [{"jsonrpc": "2.0", "id": 9, "result": {}}]
    assert len(intake._held) == 0


@pytest.mark.parametrize(
    "text",
    [
        '{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"result":"%s"}}',
        '{"jsonrpc":"2.0","method":"notifications/message","params":{"x":"%s","id":7}}',
        '{"a":"%s","b":{"id":7}}',
    ],
)
def test_a_long_line_that_is_no_answer_is_nobodys(text: str) -> None:
    found, intake = fed((text % ("x" * 2000)).encode() + b"\n")
    assert found == []
    assert intake.junk


def test_junk_without_an_end_is_counted_and_not_held() -> None:
    intake = Intake(SMALL)
    for _ in range(1000):
        assert intake.feed(b"junk " * 2000) == []
    assert intake.stray == 10_000_000
    assert intake.flooded
    assert intake.feed(b"\n" + line(id=1, result={})) == []
    assert len(intake.junk) <= 4_096
    assert not intake._held


@given(
    st.lists(st.integers(0, 60)), st.lists(st.sampled_from([b"junk\n", b"\n", b"{\n", line(id=1, result={"a": [1]})]))
)
def test_chunks_make_no_difference(cuts: list[int], lines: list[bytes]) -> None:
    stream = b"".join(lines)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    chunks = [stream[start:end] for start, end in itertools.pairwise(places)]
    assert plain(fed(*chunks)[0]) == plain(fed(stream)[0])


@given(st.binary(max_size=300))
def test_nothing_makes_it_raise(noise: bytes) -> None:
    fed(noise, b"\n", line(id=1, result={}))
