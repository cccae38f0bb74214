"""The shape of the tree: sizes, import directions and who may touch the operating system.

import-linter (scripts/check) holds the layers; here is what it cannot see. Every rule is a function from source text to
the places that break it, so that the rule itself is tested on text that breaks it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("repl_trio", "guardian")
TREES = (*PRODUCT, "tests", "bench", "stress", "scripts")

MODULE_LINES = 400
FUNCTION_LINES = 60
PARAMETERS = 6

# (rule, "path" or "path:qualified name") -> why. One that nothing needs any more fails the test as well.
JUSTIFIED: dict[tuple[str, str], str] = {
    ("event_loops", "repl_trio/worker/loop.py"): "is itself loaded by the first top-level await only; see ASYNCIO_ROOM",
}

SANS_IO = ("repl_trio/wire/", "repl_trio/machines/")
WORKER = "repl_trio/worker/"
# Loaded inside the worker, by whatever Python from 3.10 on the session's project has.
WORKER_LOADS = ("repl_trio/__init__.py", "repl_trio/errors.py", "repl_trio/limits.py", "repl_trio/wire/", WORKER)
EVENT_LOOPS = frozenset({"anyio", "asyncio", "trio"})
# The one file of the worker that needs asyncio throughout; whoever loads it at start would load asyncio with it.
ASYNCIO_ROOM = "repl_trio.worker.loop"
SPAWNING = frozenset({"multiprocessing", "pty", "subprocess"})
PROCESS_CALLS = re.compile(
    r"^os\.(fork|forkpty|posix_spawnp?|exec\w+|spawn\w+|system|popen|kill|killpg|wait|waitpid|waitid|wait3|wait4|dup|dup2"
    r"|pidfd_open)$|^signal\.pidfd_send_signal$|^trio\.(run_process|lowlevel\.open_process)$"
)
ENVIRONMENT = re.compile(r"^os\.(environb?|getenvb?|putenv|unsetenv)$")
DRAWERS = {"manager", "helper", "util", "utility", "handler", "wrapper", "common", "misc", "data", "info"}
# "data" and "info" say what a protocol calls things as well; as the name of a room or a class they say nothing.
FUNCTION_DRAWERS = DRAWERS - {"common", "data", "info"}
Breach = tuple[str, str]
"""Qualified name or "" for the module, and what is wrong."""


def sources(*prefixes: str) -> list[str]:
    """The Python files under these path prefixes, relative to the root; files without a suffix count by their `#!`."""
    found = []
    for tree in TREES:
        for path in sorted((ROOT / tree).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if name.startswith(prefixes) and path.is_file() and "__pycache__" not in name and is_python(path):
                found.append(name)
    return found


def is_python(path: Path) -> bool:
    if path.suffix:
        return path.suffix == ".py"
    with path.open("rb") as file:
        return re.match(rb"#!.*python", file.readline(200)) is not None


def functions(tree: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, bool]]:
    """Every function with its qualified name and whether it is bound to an instance or class."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            static = any(dotted(decorator) == "staticmethod" for decorator in node.decorator_list)
            yield outer + node.name, node, isinstance(tree, ast.ClassDef) and not static
            yield from functions(node, f"{outer}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{outer}{node.name}.")
        else:
            yield from functions(node, outer)


def dotted(node: ast.AST) -> str:
    """`a.b.c` for a name or attribute chain, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def imports(tree: ast.AST, name: str) -> Iterator[tuple[str, bool]]:
    """The modules a file imports, absolute, and whether the import runs when the file is loaded."""
    package = name.removesuffix(".py").split("/")[:-1]
    later: list[ast.AST] = [function for _, function, _ in functions(tree)]
    later += [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING")
    ]
    lazy = {id(inner) for node in later for inner in ast.walk(node)}
    for node in ast.walk(tree):
        at_load = id(node) not in lazy
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, at_load
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module, at_load
            for alias in node.names:
                yield f"{module}.{alias.name}", at_load


def uses(tree: ast.AST) -> Iterator[str]:
    """Every dotted name read, `from x import y` and `import x as y` undone."""
    real: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            real.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            real.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    for node in ast.walk(tree):
        if name := dotted(node):
            head, dot, rest = name.partition(".")
            yield (real.get(head, head) + dot + rest).replace("posix.", "os.", 1)


def module_size(source: str, _name: str) -> Iterator[Breach]:
    if (lines := len(source.splitlines())) > MODULE_LINES:
        yield "", f"{lines} lines, at most {MODULE_LINES}"


def function_size(source: str, _name: str) -> Iterator[Breach]:
    for where, node, _ in functions(ast.parse(source)):
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES:
            yield where, f"{lines} lines, at most {FUNCTION_LINES}"


def parameter_count(source: str, _name: str) -> Iterator[Breach]:
    for where, node, bound in functions(ast.parse(source)):
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
        if len(every) - bound > PARAMETERS:
            yield where, f"{len(every) - bound} parameters, at most {PARAMETERS}"


def positional_booleans(source: str, _name: str) -> Iterator[Breach]:
    for where, node, _ in functions(ast.parse(source)):
        given = [*node.args.posonlyargs, *node.args.args]
        defaults: list[ast.expr | None] = [None] * (len(given) - len(node.args.defaults))
        for parameter, default in zip(given, [*defaults, *node.args.defaults], strict=True):
            kind = ast.unparse(parameter.annotation) if parameter.annotation else ""
            truth = isinstance(default, ast.Constant) and isinstance(default.value, bool)
            if truth or re.fullmatch(r"(Optional\[)?\s*bool\b.*", kind):
                yield where, f"boolean {parameter.arg!r} can be passed by position"


def words(name: str) -> set[str]:
    """The words of a snake_case or CamelCase name, singular."""
    plain = {word.lower() for word in re.findall("[A-Z]?[a-z]+", name)}
    return plain | {word.removesuffix("s") for word in plain} | {re.sub("ies$", "y", word) for word in plain}


def drawer_names(source: str, name: str) -> Iterator[Breach]:
    module = Path(name).stem if Path(name).stem != "__init__" else Path(name).parent.name
    # What a cell finds in its namespace the contract itself calls helpers.
    drawers = DRAWERS - {"helper"} if name.startswith(WORKER) else DRAWERS
    if drawers & words(module):
        yield "", f"the name of a drawer, not of a thing: {module}"
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and drawers & words(node.name):
            yield node.name, "the name of a drawer, not of a thing"
    for where, node, _ in functions(tree):
        if drawers & FUNCTION_DRAWERS & words(node.name):
            yield where, "the name of a drawer, not of a thing"


def event_loops(source: str, name: str) -> Iterator[Breach]:
    worker = name.startswith(WORKER)
    for module, at_load in imports(ast.parse(source), name):
        top = module.partition(".")[0]
        # A cell with a top-level await brings asyncio into the worker, no earlier.
        allowed = worker and not at_load and top in ("asyncio", "repl_trio")
        if (top in EVENT_LOOPS or module == ASYNCIO_ROOM) and not allowed:
            yield "", f"imports {module}"


def foreign_imports(source: str, name: str) -> Iterator[Breach]:
    """Imports beyond the standard library, the file's own folder and, for the worker, what it may load."""
    allowed = {"repl_trio", "repl_trio.__version__"}
    rooms = [path.removesuffix(".py").rstrip("/").replace("/", ".") for path in WORKER_LOADS]
    if name.startswith("guardian/"):
        # Bare names of files beside it, as a process started from that folder sees them.
        allowed, rooms = set(), [path.stem for path in (ROOT / name).parent.glob("*.py")]
    for module, _ in imports(ast.parse(source), name):
        ours = module in allowed or any(module == room or module.startswith(f"{room}.") for room in rooms)
        if not ours and module.partition(".")[0] not in sys.stdlib_module_names:
            yield "", f"imports {module}"


def old_syntax(source: str, _name: str) -> Iterator[Breach]:
    try:
        ast.parse(source, feature_version=(3, 10))
    except SyntaxError as error:
        yield "", f"line {error.lineno} is not Python 3.10: {error.msg}"


def process_calls(source: str, name: str) -> Iterator[Breach]:
    tree = ast.parse(source)
    for used in sorted(set(uses(tree))):
        if PROCESS_CALLS.search(used):
            yield "", f"uses {used}"
    for module in sorted({module.partition(".")[0] for module, _ in imports(tree, name)} & SPAWNING):
        yield "", f"imports {module}"


def environment(source: str, _name: str) -> Iterator[Breach]:
    for used in sorted(set(uses(ast.parse(source)))):
        if ENVIRONMENT.search(used):
            yield "", f"uses {used}"


def polling(source: str, _name: str) -> Iterator[Breach]:
    if "time.sleep" in set(uses(ast.parse(source))):
        yield "", "uses time.sleep"


Rule = Callable[[str, str], Iterable[Breach]]
# rule -> the path prefixes it holds for, and those among them it does not.
RULES: dict[Rule, tuple[tuple[str, ...], tuple[str, ...]]] = {
    module_size: (TREES, ()),
    function_size: (TREES, ()),
    parameter_count: (TREES, ()),
    positional_booleans: ((*PRODUCT, "bench", "stress", "scripts"), ()),
    drawer_names: (PRODUCT, ()),
    event_loops: ((*SANS_IO, WORKER, "guardian"), ()),
    foreign_imports: ((*WORKER_LOADS, "guardian"), ()),
    old_syntax: (WORKER_LOADS, ()),
    # The worker is a program of its own on the other side of that boundary: it moves its own descriptors and runs `sh`.
    process_calls: (("repl_trio",), ("repl_trio/process/", WORKER)),
    # In the worker os.environ is the project's, given by the server, and belongs to the cells.
    environment: (("repl_trio",), ("repl_trio/settings.py", WORKER)),
    polling: (("repl_trio",), ()),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_keeps(rule: Rule) -> None:
    prefixes, excepted = RULES[rule]
    justified = {place for by, place in JUSTIFIED if by == rule.__name__}
    broken = []
    needed = set()
    for name in sources(*prefixes):
        if excepted and name.startswith(excepted):
            continue
        for where, what in rule((ROOT / name).read_text(encoding="utf-8"), name):
            place = f"{name}:{where}" if where else name
            if place in justified:
                needed.add(place)
            else:
                broken.append(f"{place}: {what}")
    assert not broken, "\n".join(["", *broken])
    assert justified == needed, "no longer needed: take it out of JUSTIFIED"


def test_every_justification_names_a_rule_and_a_reason() -> None:
    names = {rule.__name__ for rule in RULES}
    assert [entry for entry, why in JUSTIFIED.items() if entry[0] not in names or len(why) < 20] == []


def test_the_tree_is_read() -> None:
    assert "repl_trio/limits.py" in sources("repl_trio")
    assert "repl_trio/wire/__init__.py" in sources(*SANS_IO)
    assert "tests/test_architecture.py" in sources("tests")


WIRE, SESSION, CHILD, GUARD = "repl_trio/wire/x.py", "repl_trio/session/x.py", "repl_trio/worker/x.py", "guardian/x.py"
SEVEN = "a, b, c, d, e, f, g"


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [
        (module_size, WIRE, "\n" * 401),
        (function_size, WIRE, "def f():\n" + "    1\n" * 60),
        (function_size, WIRE, "class C:\n    async def f(self):\n" + "        1\n" * 60),
        (parameter_count, WIRE, f"def f({SEVEN}): 1"),
        (parameter_count, WIRE, f"class C:\n    def f(self, {SEVEN}): 1"),
        (parameter_count, WIRE, "def f(a, b, c, /, *d, e, f, **g): 1"),
        (positional_booleans, WIRE, "def f(a: bool): 1"),
        (positional_booleans, WIRE, "def f(a, b=False, *, c=True): 1"),
        (positional_booleans, WIRE, "class C:\n    def f(self, a: bool | None): 1"),
        (drawer_names, "repl_trio/session/run_utils.py", ""),
        (drawer_names, "repl_trio/helpers/__init__.py", ""),
        (drawer_names, WIRE, "class RunManager: 1"),
        (drawer_names, WIRE, "class C:\n    def signal_handler(self): 1"),
        (event_loops, WIRE, "def f():\n    import trio.lowlevel"),
        (event_loops, CHILD, "from asyncio import run"),
        (event_loops, CHILD, "def f():\n    from trio import run"),
        (event_loops, CHILD, "from .loop import CellLoop"),
        (foreign_imports, CHILD, "import psutil"),
        (foreign_imports, CHILD, "from ..session import run"),
        (foreign_imports, CHILD, "from .. import session"),
        (foreign_imports, GUARD, "def f():\n    import repl_trio.limits"),
        (old_syntax, CHILD, "try: 1\nexcept* ValueError: 1"),
        (process_calls, SESSION, "import os\nos.kill(1, 2)"),
        (process_calls, SESSION, "from os import dup as copy\ncopy(1)"),
        (process_calls, SESSION, "import posix\nposix.posix_spawn"),
        (process_calls, SESSION, "import subprocess"),
        (environment, SESSION, "import os as o\no.environ['X']"),
        (environment, SESSION, "from os import getenv\ngetenv('X')"),
        (polling, SESSION, "import time\ntime.sleep(1)"),
    ],
)
def test_rule_sees(rule: Rule, name: str, source: str) -> None:
    assert list(rule(source, name)) != []


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [
        (function_size, WIRE, "def f():\n" + "    1\n" * 59),
        (parameter_count, WIRE, "class C:\n    def f(self, a, b, c, d, e, f): 1"),
        (positional_booleans, WIRE, "def f(a: Callable[[], bool], *, b: bool): 1"),
        (drawer_names, WIRE, "class Database: 1\nclass Information: 1"),
        (drawer_names, "repl_trio/worker/helpers.py", ""),
        (event_loops, CHILD, "def f():\n    import asyncio\n    from . import loop"),
        (event_loops, CHILD, "if TYPE_CHECKING:\n    import asyncio"),
        (
            foreign_imports,
            CHILD,
            "import os\nfrom ..wire import framing\nfrom ..limits import Limits\nfrom . import display",
        ),
        (process_calls, SESSION, "import os\nos.getpid()"),
    ],
)
def test_rule_lets_pass(rule: Rule, name: str, source: str) -> None:
    assert list(rule(source, name)) == []
