"""How Python is run on a server: which of its tools takes code, in which parameter, and how an answer shows a value."""

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from bench.client import Answer, Client, Sent

CODE_NAMES = (
    "code",
    "python_code",
    "source",
    "source_code",
    "script",
    "cell",
    "python",
    "command",
    "expression",
    "input",
)
"""What servers call the parameter that holds the code, likeliest first."""
TOOL_WORDS = ("exec", "run", "eval", "python", "repl")
"""What servers call the tool that runs it; each word found in a name makes the tool likelier."""


@dataclass(frozen=True, slots=True)
class Surface:
    """How to run Python on a server, found by `find_surface`. `argument` may be a dotted path, "params.code".

    `shows_values`: the value of a last expression is in the answer (otherwise code has to print it). `resets`:
    "argument" of the same tool, the name of a tool without required arguments, or None. `probe`: the cheap call that
    shows whether the server is responsive: "python_health", or "ping" where that tool is missing.
    """

    tool: str
    argument: str
    shows_values: bool
    resets: str | None
    probe: str


def cell(surface: Surface, code: str, *, reset: bool = False) -> dict[str, Any]:
    """The params of the `tools/call` that runs `code`."""
    *outer, name = surface.argument.split(".")
    arguments: dict[str, Any] = {name: code, "reset": True} if reset else {name: code}
    for around in reversed(outer):
        arguments = {around: arguments}
    return {"name": surface.tool, "arguments": arguments}


def showing(surface: Surface, expression: str) -> str:
    """The code that makes the value of an expression appear in the answer."""
    return expression if surface.shows_values else f"print({expression})"


def text_of(result: dict[str, Any]) -> str:
    """All the text of a tool result."""
    return "\n".join(block.get("text", "") for block in result.get("content", []))


def shows(result: dict[str, Any], value: str) -> bool:
    """Whether a tool result succeeded with this value: as `return_value` or printed, else as a word of its text."""
    if result.get("isError"):
        return False
    structured = result.get("structuredContent")
    if isinstance(structured, dict) and "return_value" in structured:
        return value in (structured["return_value"], str(structured.get("stdout", "")).strip())
    return re.search(rf"(?<![\w.]){re.escape(value)}(?![\w.])", text_of(result)) is not None


def expect(client: Client, answer: Answer, value: str) -> Answer:
    """The answer itself, if it is the right one: a fast wrong answer is no figure."""
    if not shows(answer.result, value):
        raise client.failure(f"expected {value!r}, got {json.dumps(answer.result)[:500]}")
    return answer


def find_surface(client: Client, tool: str | None, argument: str | None) -> Surface:
    """Choose the tool and the parameter to run Python with, unless given, and try them with one cell."""
    tools = client.tools()
    chosen = _choose_tool(tools, tool, argument)
    if chosen is None:
        names = ", ".join(sorted(each["name"] for each in tools))
        raise client.failure(f"no tool that takes code alone; choose with --tool and --argument from: {names}")
    schema = chosen["inputSchema"]
    name = argument or _code_name(schema)
    if name is None:
        raise client.failure(f"the code parameter of {chosen['name']} is unknown; name it with --argument")
    probe = "python_health" if any(each["name"] == "python_health" for each in tools) else "ping"
    surface = Surface(chosen["name"], name, True, _resets(tools, schema), probe)
    if _shows_value(client, surface):
        return surface
    printing = replace(surface, shows_values=False)
    if _shows_value(client, printing):
        return printing
    raise client.failure(f"{surface.tool}({surface.argument}=...) does not give the value of a sum")


def _shows_value(client: Client, surface: Surface) -> bool:
    # A number that no banner, prompt, counter or elapsed time is likely to hold.
    result = client.request("tools/call", cell(surface, showing(surface, "48000 + 351"))).result
    return shows(result, "48351")


def _choose_tool(tools: list[dict[str, Any]], tool: str | None, argument: str | None) -> dict[str, Any] | None:
    """The named tool, else the likeliest that needs nothing but code."""
    if tool is not None:
        return next((each for each in tools if each["name"] == tool), None)
    fitting = []
    for each in tools:
        outer, inner = _innermost(each["inputSchema"])
        name = argument or _code_name(each["inputSchema"])
        own = name.removeprefix(outer) if name is not None else None
        if own in inner.get("properties", {}) and {*inner.get("required", ())} <= {own}:
            fitting.append((_likeliness(each["name"], str(own)), each))
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def _likeliness(tool: str, argument: str) -> tuple[int, int]:
    words = sum(word in tool.lower() for word in TOOL_WORDS)
    return words, -CODE_NAMES.index(argument) if argument in CODE_NAMES else 0


def _code_name(schema: dict[str, Any]) -> str | None:
    outer, inner = _innermost(schema)
    return next((outer + name for name in CODE_NAMES if name in inner.get("properties", {})), None)


def _innermost(schema: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The schema that holds the parameters, and the dotted path to it: some servers put them all into one object."""
    properties = schema.get("properties", {})
    if len(properties) == 1:
        ((name, only),) = properties.items()
        only = schema.get("$defs", {}).get(str(only.get("$ref", "")).removeprefix("#/$defs/"), only)
        if "properties" in only:
            return f"{name}.", only
    return "", schema


def _resets(tools: list[dict[str, Any]], schema: dict[str, Any]) -> str | None:
    if "reset" in _innermost(schema)[1].get("properties", {}):
        return "argument"
    for word in ("reset", "restart", "clear"):
        for each in tools:
            if word in each["name"].lower() and not each["inputSchema"].get("required"):
                return str(each["name"])
    return None


def probe(client: Client, surface: Surface) -> Sent:
    """Send the call that shows whether the server is responsive."""
    if surface.probe == "ping":
        return client.send("ping")
    return client.send("tools/call", {"name": surface.probe, "arguments": {}})
