"""Whether an entry would start this very server: most projects that use it list it beside its peers.

Only a program counts, never an argument: a peer that serves the files of a folder named `repl-trio` is a peer. What a
shell, `env`, `uv` and the like run is looked through. What cannot be seen here (an alias on PATH, a container) ends at
the recursion block: the server that is started has no broker.
"""

from __future__ import annotations

import os

from .entries import Stdio

_SCRIPT = "repl-trio"
_PACKAGE = "repl_trio"
_SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ksh"))
#: Programs that run what follows their options, and how many words of their own stand before it.
_RUNNERS = {
    **dict.fromkeys(("exec", "command", "nohup", "setsid", "time", "nice", "ionice", "stdbuf", "caffeinate", "env"), 0),
    "timeout": 1,
    "uvx": 0,
}
#: (program, words behind it) that do the same.
_RUN_WORDS = {
    "uv": (("run",), ("tool", "run")),
    "pipx": (("run",),),
    **dict.fromkeys(("poetry", "pipenv", "hatch", "pdm", "rye", "pixi"), (("run",),)),
}
#: Options of these programs that take the next word as their value.
_VALUED = frozenset(
    (
        *("--from", "--with", "--with-editable", "--with-requirements", "--python", "-p", "--directory", "--project"),
        *("--index", "--index-url", "-i", "--extra-index-url", "--group", "--extra", "--env-file", "--refresh-package"),
        *("--spec", "--pip-args", "-n", "-u", "-s", "-k", "-e", "--chdir", "-C", "-c"),
    )
)
_DEPTH = 16


def starts_itself(target: Stdio) -> bool:
    """Whether the entry's process would be this server, as far as its words tell. Looks at files, starts nothing."""
    return _is_self([target.command, *target.args], target.cwd, _DEPTH)


def _is_self(words: list[str], cwd: str, depth: int) -> bool:
    if not words or depth == 0:
        return False
    program, rest = words[0], words[1:]
    name = os.path.basename(program)
    if _is_our_script(program, cwd):
        return True
    if name in _SHELLS:
        return _shell(rest, cwd, depth)
    if name.startswith(("python", "pypy")):
        return _python(rest, cwd)
    for run in _RUN_WORDS.get(name, ()):
        if tuple(rest[: len(run)]) == run:
            return _is_self(_behind_options(rest[len(run) :], 0), cwd, depth - 1)
    if name in _RUNNERS:
        return _is_self(_behind_options(rest, _RUNNERS[name]), cwd, depth - 1)
    return False


def _is_our_script(program: str, cwd: str) -> bool:
    """`repl-trio`, also with a version, or a path that leads to it, to the package or to a checkout's `scripts/run`."""
    if "/" not in program:
        for mark in "@=<>~![":
            program = program.partition(mark)[0]
        return program in (_SCRIPT, _PACKAGE)
    path = os.path.realpath(os.path.join(cwd, program))
    folder, name = os.path.split(path)
    if name == _SCRIPT:
        return not os.path.isdir(path)
    if os.path.basename(folder) == _PACKAGE:
        return name == "__main__.py"
    beside = os.path.join(os.path.dirname(folder), _PACKAGE, "__main__.py")
    return name == "run" and os.path.basename(folder) == "scripts" and os.path.exists(beside)


def _shell(words: list[str], cwd: str, depth: int) -> bool:
    index = 0
    while index < len(words):
        word = words[index]
        if not word.startswith(("-", "+")):
            return _is_self(words[index:], cwd, depth - 1)  # a script
        if not word.startswith("--") and "c" in word:
            script = "".join(words[index + 1 : index + 2])
            return any(_is_self(command, cwd, depth - 1) for command in _commands(script))
        index += 1 + (word[1:] in ("o", "O"))
    return False


def _commands(script: str) -> list[list[str]]:
    """The simple commands of a shell script, roughly: split at operators and line ends, assignments dropped."""
    import shlex

    commands: list[list[str]] = [[]]
    for line in script.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        commands.append([])
        try:
            for word in lexer:
                if set(word) <= set("();<>|&"):
                    commands.append([])
                elif commands[-1] or "=" not in word:
                    commands[-1].append(word)
        except ValueError:
            continue  # an open quote: the shell will not start it either
    return commands


def _python(words: list[str], cwd: str) -> bool:
    """Whether a Python with these words behind it runs the package: by `-m`, by `-c` or as a script or folder."""
    index = 0
    while index < len(words):
        word = words[index]
        if not word.startswith("-") or word == "-":
            folder = os.path.realpath(os.path.join(cwd, word))
            return _is_our_script(os.path.join(cwd, word), cwd) or os.path.basename(folder) == _PACKAGE
        if not word.startswith("--"):
            for at, letter in enumerate(word[1:], 2):
                if letter in "mcWX":
                    value = word[at:] or "".join(words[index + 1 : index + 2])
                    if letter == "m":
                        return value.partition(".")[0] == _PACKAGE
                    if letter == "c":
                        return _PACKAGE in value
                    index += not word[at:]
                    break
        index += 1
    return False


def _behind_options(words: list[str], own: int) -> list[str]:
    """What a runner runs: the words behind its options, their values, NAME=VALUE and `own` words of its own."""
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            index += 1
            break
        if word.startswith("-"):
            index += 1 + (word in _VALUED)
        elif "=" in word and "==" not in word and word.partition("=")[0].isidentifier():
            index += 1
        else:
            break
    return words[index + own :]
