"""The `mcp` object in cells: forms of a call, complete results, errors in words, what else can be asked."""

import sys
from functools import partial
from pathlib import Path

import pytest

from tests.process.rpc_driver import Frame, RpcDriver, refusal, text, value
from tests.process.worker_driver import EACH, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")

PENDING = "mcp._turn.exchange().pending"


def answered(answer: Frame, _frame: Frame) -> Frame:
    """One answer for everything."""
    return answer


# -- calls and results -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", EACH)
def test_every_form_of_a_call_asks_once_and_gives_the_whole_result(version: str, tmp_path: Path) -> None:
    forms = (
        "mcp.call('s', 't', a=1)",
        "mcp.call('s', 't', arguments={'a': 1})",
        "mcp.call(server='s', tool='t', a=1)",
        "await mcp.call('s', 't', a=1)",
        "await mcp.acall('s', 't', a=1)",
        "import asyncio\nawait asyncio.to_thread(mcp.call, 's', 't', a=1)",
        "(await asyncio.gather(mcp.acall('s', 't', a=1)))[0]",
        "asyncio.run(mcp.acall('s', 't', a=1))",
    )
    with RpcDriver(interpreter(version), tmp_path) as worker:
        worker.ready()
        for form in forms:
            worker.asked.clear()
            run = worker.cell(f"r = {form}" if "\n" not in form else form.replace("\n", "\nr = "))
            assert run.success, run.error
            (asked,) = worker.asked
            params = {"server": "s", "tool": "t", "arguments": {"a": 1}, "timeout": None}
            assert (asked["op"], asked["params"]) == ("call", params)
            assert value(worker.cell("[dict(r), r.text, r.data, r.json()]")) == [
                text('{"a": 1}', structuredContent={"a": 1}),
                '{"a": 1}',
                {"a": 1},
                {"a": 1},
            ]
        assert worker.cancelled == []


def test_every_block_and_every_structured_value_comes_as_it_was_sent(plain: RpcDriver) -> None:
    blocks = [
        {"type": "text", "text": "é\u2028\U0001f600"},
        {"type": "image", "data": "aGk=" * 100, "mimeType": "image/png"},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "a:b", "name": "n"},
        {"type": "resource", "resource": {"uri": "a:b", "blob": "aGk="}},
        {"type": "x-new", "a": 1},
    ]
    envelope: Frame = {"content": blocks, "_meta": {"x": [None]}, "extra": 1}
    plain.reply = lambda _frame: envelope
    assert value(plain.cell("r = mcp.call('s', 't'); dict(r)")) == envelope
    assert "<400 characters>" in plain.cell("r").return_value
    kinds = [[], 0, "", False, None]
    for structured in kinds:
        plain.reply = partial(answered, text("", structuredContent=structured))
        told = value(plain.cell("r = mcp.call('s', 't'); ['structuredContent' in r, r.data]"))
        assert told == [True, structured]
        assert type(told[1]) is type(structured)
    plain.reply = lambda _frame: text("")
    assert value(plain.cell("r = mcp.call('s', 't'); ['structuredContent' in r, r.data]")) == [False, None]


def test_an_error_of_the_tool_is_raised_with_its_whole_result(plain: RpcDriver) -> None:
    envelope = text("quota", isError=True, structuredContent={"code": 7})
    plain.reply = lambda _frame: envelope
    cell = """
try: mcp.call('s', 't')
except mcp.ToolError as error: caught = error
[isinstance(caught, mcp.Error), str(caught), dict(caught.result), caught.code, caught.sent, caught.server, caught.tool]
"""
    assert value(plain.cell(cell)) == [True, "s.t: quota", envelope, "TOOL_ERROR", "done", "s", "t"]
    assert plain.cell("mcp.call('s', 't')").error.endswith("mcp.ToolError: s.t: quota")
    assert value(plain.cell("import pickle; pickle.loads(pickle.dumps(caught)).result.data")) == {"code": 7}


def test_a_failing_call_is_caught_and_the_cell_goes_on(plain: RpcDriver) -> None:
    def reply(frame: Frame) -> object:
        tool = frame["params"]["tool"]
        return text("") if tool == "good" else refusal("UNKNOWN_TOOL", f"s has no tool {tool}; it has good")

    plain.reply = reply
    cell = """
ok = []
for tool in ('good', 'no_such', 'good'):
    try: ok.append(type(mcp.call('s', tool)).__name__)
    except Exception as e: ok.append([type(e).__name__, e.code, str(e)])
ok
"""
    message = "s has no tool no_such; it has good. The call was not sent."
    assert value(plain.cell(cell)) == ["Envelope", ["Error", "UNKNOWN_TOOL", message], "Envelope"]


@pytest.mark.parametrize(
    ("sent", "words"), [("no", "not sent"), ("unknown", "Outcome unknown"), ("done", "s.t: no reason")]
)
def test_an_error_says_whether_the_peer_was_asked_to_act(plain: RpcDriver, sent: str, words: str) -> None:
    plain.reply = lambda _frame: refusal("CALL_TIMEOUT", "no reason", sent, server="s", tool="t")
    run = plain.cell("try: mcp.call('s', 't')\nexcept mcp.Error as e: got = [e.sent, str(e)]\ngot")
    told = value(run)
    assert told[0] == sent
    assert words in told[1]
    assert told[1].startswith("s.t: ")


WRONG = {
    "mcp.call('s', 't', x={1})": "Error: The value at /x of the arguments is of type set",
    "mcp.call('s', 't', x=[{'a/b': float('nan')}])": "/x/0/a~1b of the arguments is NaN",
    "mcp.call('s', 't', x='\\ud800')": "/x of the arguments holds a lone surrogate",
    "mcp.call('s', 't', x=10**5000)": "/x of the arguments is an integer of",
    "mcp.call('s', 't', x={1: 2})": "/x of the arguments has a key of type int",
    "x = []\nx.append(x)\nmcp.call('s', 't', x=x)": "is nested deeper than",
    "mcp.call('s', 't', x='y' * 1_100_000)": "do not fit",
    "mcp.call('s', 3)": "TypeError: tool must be a str, not int",
    "mcp.call('s', 't', arguments=[1])": "TypeError: arguments must be a dict or given by name, not list",
    "mcp.call('s', 't', 1)": "TypeError: arguments must be a dict or given by name, not int",
    "mcp.call('s', 't', {}, 1)": "TypeError: mcp.call() takes from 3 to 4 positional arguments",
    "mcp.call('s', 't', server='x')": "TypeError: mcp.call() got multiple values for argument 'server'",
    "mcp.get_prompt('s', 'p', n=1)": "TypeError: the argument 'n' of a prompt must be a str, not int",
    "mcp.call('s', 't', arguments={'a': 1}, a=2)": "TypeError: given twice, in arguments and by name: a",
    "mcp.call('s', 't', timeout='1')": "TypeError: timeout must be a number of seconds, not str",
}


@pytest.mark.parametrize("code", WRONG)
def test_what_cannot_be_asked_is_an_error_in_words_and_nothing_is_sent(plain: RpcDriver, code: str) -> None:
    run = plain.cell(code)
    assert not run.success
    assert WRONG[code] in run.error
    assert plain.asked == []
    assert value(plain.cell(f"[{PENDING}, mcp.call('s', 't').text]")) == [0, "{}"]


def test_subclasses_and_tuples_are_what_json_makes_of_them(plain: RpcDriver) -> None:
    plain.cell("import enum\nclass C(enum.IntEnum): A = 3\nclass S(str): pass\nmcp.call('s','t',x=(C.A, S('s'), True))")
    assert plain.asked[0]["params"]["arguments"] == {"x": [3, "s", True]}


def test_an_answer_that_the_interpreter_cannot_parse_is_an_error_in_its_cell(worker: RpcDriver) -> None:
    worker.reply = lambda _frame: None  # answered below
    run_id = worker.start("mcp.call('s', 't')")
    worker.wait_asked(1)
    worker.send("rpc_result", id=worker.asked[0]["id"], result="[" * 100_000 + "]" * 100_000, error=None)
    run = worker.answer(run_id)
    assert "cannot parse the answer" in run.error
    assert "its result is lost" in run.error
    assert value(worker.cell("1 + 1")) == 2


# -- the rest of `mcp` -----------------------------------------------------------------------------------------


def test_nothing_is_loaded_before_mcp_is_used(plain: RpcDriver) -> None:
    loaded = "[n for n in ('rpc', 'envelope', 'stubs') if '_repl_trio.worker.' + n in sys.modules]"
    assert value(plain.cell(f"import sys; {loaded}")) == []
    plain.cell("mcp.call('s', 't')")
    assert value(plain.cell(loaded)) == ["rpc", "envelope"]


@pytest.mark.parametrize("version", EACH)
def test_its_help_shows_names_of_cells_alone(version: str, tmp_path: Path) -> None:
    with RpcDriver(interpreter(version), tmp_path) as worker:
        worker.ready()
        shown = value(worker.cell("import pydoc; pydoc.plain(pydoc.render_doc(mcp))"))
        assert "class mcp(builtins.object)" in shown
        assert "The other MCP servers of this project." in shown
        assert "_repl_trio" not in shown
        assert "Peers" not in shown


def test_mcp_comes_back_for_each_cell(plain: RpcDriver) -> None:
    assert value(plain.cell("mcp = 3; mcp")) == 3
    assert plain.cell("mcp").return_value.startswith("MCP servers:\n  files: ready, 3 tools\n")


def test_its_repr_names_what_is_there_or_how_to_configure_it(plain: RpcDriver) -> None:
    assert "bad: fault: env: FOO is not set\n    and more\n" in plain.cell("mcp").return_value
    plain.reply = lambda _frame: {"servers": [], "note": ".mcp.json is no JSON"}
    assert plain.cell("mcp").return_value == ".mcp.json is no JSON"
    plain.reply = lambda _frame: {"servers": [], "note": None}
    assert '"mcpServers"' in plain.cell("mcp").return_value
    plain.reply = lambda _frame: refusal("UNSUPPORTED", "This server reaches no peers")
    assert plain.cell("mcp").return_value == "<mcp: This server reaches no peers>"


ANSWERS: dict[str, object] = {
    "mcp.servers()['git-hub']": {"state": "idle", "tools": None, "reason": None},
    "list(mcp.refresh('files'))": ["files", "git-hub", "bad"],
    "str(mcp.help())": "files: three tools",
    "[t['name'] for t in mcp.list_tools('files')] + mcp.list_tools('files').invalid": [
        "read-file",
        "2nd",
        "tool 3 has no name",
    ],
    "repr(mcp.list_tools('files'))": "read-file - Read a file.\n2nd\ntool 3 has no name",
    "repr(mcp.search('file'))": "files: read-file(path: str) - Read a file.\nnot searched: git-hub",
    "dict(mcp.explain('files'))": {"server": "files", "state": "ready", "known": []},
    "repr(mcp.explain('files'))": "server: files\nstate: ready",
    "repr(mcp.servers())": "files: ready, 3 tools\ngit-hub: idle\nbad: fault: env: FOO is not set\n    and more",
    "[one['status'] for one in mcp.journal()]": ["completed"],
    "repr(mcp.journal()).partition(' files')[2]": ".t completed after 0.250 s (r1)",
    "repr(mcp.list_resources('files'))": "a:b\na:{x}",
    "mcp.read_resource('files', 'a:b').text": "inside",
    "repr(mcp.list_prompts('files'))": "greet(name, x=...) - Say hello",
    "mcp.get_prompt('files', 'greet', name='x', server='y').text": "hello",
    "mcp.get_prompt('files', 'greet', who='x').text": "hello",
    "mcp.text(mcp.call('files', 't', a=1))": '{"a": 1}',
    "[n for n in dir(mcp) if n in ('call', 'files', 'git_hub', '_turn', 'Error')]": [
        "Error",
        "call",
        "files",
        "git_hub",
    ],
}


@pytest.mark.parametrize("code", ANSWERS)
def test_what_else_can_be_asked(plain: RpcDriver, code: str) -> None:
    assert value(plain.cell(code)) == ANSWERS[code]


def test_a_long_log_is_shown_by_its_end_and_kept_whole(plain: RpcDriver) -> None:
    plain.reply = lambda _frame: {"server": "s", "stderr": "old\n" * 2_000 + "new\n"}
    shown = plain.cell("told = mcp.explain('s'); told").return_value
    assert shown.startswith("server: s\nstderr: [6,003 characters before] ...")
    assert shown.endswith("\n    old\n    new")
    assert value(plain.cell("len(told['stderr'])")) == 8_004


def test_a_search_that_finds_nothing_says_where_it_looked(plain: RpcDriver) -> None:
    plain.reply = lambda _frame: {"matches": [], "note": "not searched: git-hub"}
    assert value(plain.cell("found = mcp.search('x'); [list(found), repr(found), found.note]")) == [
        [],
        "no tool has all these words\nnot searched: git-hub",
        "no tool has all these words\nnot searched: git-hub",
    ]


def test_arguments_may_be_a_dict_in_the_third_place(plain: RpcDriver) -> None:
    assert value(plain.cell("mcp.call('s', 't', {'server': 1, 'timeout': 2}, tool_=3).data")) == {
        "server": 1,
        "timeout": 2,
        "tool_": 3,
    }
    assert value(plain.cell("(await mcp.acall('s', 't', {'a': 1})).data")) == {"a": 1}


def test_what_is_binary_in_a_result_comes_out_as_bytes(plain: RpcDriver) -> None:
    blocks = [
        {"type": "text", "text": "words"},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "audio", "data": "aG8="},
        {"type": "resource", "resource": {"uri": "a:b", "blob": "aGE=", "mimeType": "a/b"}},
        {"type": "resource", "resource": {"uri": "a:c", "text": "words"}},
        {"type": "resource_link", "uri": "a:d"},
        {"type": "image", "data": 7},
        7,
    ]
    plain.reply = lambda _frame: {"content": blocks}
    assert value(plain.cell("[[kind, held.decode()] for kind, held in mcp.call('s', 't').blobs]")) == [
        ["image/png", "hi"],
        ["application/octet-stream", "ho"],
        ["a/b", "ha"],
    ]
    plain.reply = lambda _frame: {"contents": [{"uri": "a:b", "blob": "aGk="}]}
    assert value(plain.cell("mcp.read_resource('s', 'a:b').blobs[0][1].decode()")) == "hi"
    plain.reply = lambda _frame: {"content": [{"type": "image", "data": "a"}]}
    assert "Error: " in plain.cell("mcp.call('s', 't').blobs").error


def test_what_a_peer_wrote_does_not_run_into_our_words(plain: RpcDriver) -> None:
    plain.reply = lambda _frame: refusal("PEER_GONE", "s ended. Its stderr ends with:\nno disk", "unknown", server="s")
    assert "\nno disk\nOutcome unknown: " in plain.cell("mcp.call('s', 't')").error
    plain.reply = lambda _frame: refusal("LIMIT_REACHED", "s: its answer is too long.", "done", server="s")
    assert plain.cell("mcp.call('s', 't')").error.endswith("s: its answer is too long. The call itself is done.")


def test_a_server_is_an_attribute_when_that_is_unambiguous(plain: RpcDriver) -> None:
    assert value(plain.cell("mcp.git_hub.read_file('p').data")) == {"path": "p"}
    assert plain.asked[-1]["params"]["server"] == "git-hub"
    assert "servers: files, git-hub, bad" in plain.cell("mcp.nope").error
    names = [{"name": name, "state": "idle", "tools": None, "reason": None} for name in ("a-b", "a.b")]
    plain.reply = lambda _frame: {"servers": names, "note": None}
    assert "no server of that name alone" in plain.cell("mcp.a_b").error
