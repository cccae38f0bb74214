"""Start of a worker: `PYTHON boot.py [LIMIT=VALUE ...]`, with the descriptors of `docs/wire.md`.

The syntax is kept valid down to Python 2.7, so that an interpreter too old to be a worker can say so in a `refused`
frame instead of dying of a SyntaxError that nobody reads. Everything newer lives in the modules that this one loads.
"""
# ruff: noqa: UP031 - f-strings are a SyntaxError on the interpreters that this file must refuse in words

import os
import sys

OLDEST = (3, 10)


def refuse():
    # type: () -> None
    """Say in one `refused` frame why this interpreter cannot be a worker."""
    reason = "Python %d.%d is too old: a worker needs %d.%d or newer" % (tuple(sys.version_info[:2]) + OLDEST)
    os.write(3, ('{"frame":"refused","reason":"%s"}\n' % reason).encode("ascii"))


def standard_path(entries):
    # type: (list[str]) -> list[str]
    """Those entries of `sys.path` that hold the standard library and nothing else."""
    library = os.path.dirname(os.path.abspath(os.__file__))
    archive = "python%d%d.zip" % tuple(sys.version_info[:2])
    kept = []
    for entry in entries:
        folder, name = os.path.split(entry)
        if (
            entry == library
            or (name == archive and folder == os.path.dirname(library))
            or (name == "lib-dynload" and os.path.basename(folder) == os.path.basename(library))
        ):
            kept.append(entry)
    return kept or [library]


def start():
    # type: () -> None
    """Load the worker with nothing but the standard library on `sys.path`, then let it serve until it ends.

    A project file that shadows a standard module, a PYTHONPATH and site-packages must not reach our own imports; the
    folder of this script must not reach the user's.
    """
    here = os.path.dirname(os.path.realpath(__file__))
    users = list(sys.path)
    if users and os.path.realpath(users[0]) == here:
        del users[0]
    standard = standard_path(users)
    sys.path = standard
    package = type(sys)("_repl_trio")
    package.__path__ = [os.path.dirname(here)]
    sys.modules["_repl_trio"] = package
    # PYTHONDONTWRITEBYTECODE is meant for the user's files. Compiling ours at each start would double its cost.
    sys.dont_write_bytecode = False
    # Before anything of ours reads a limit: those that the server overrides come as NAME=VALUE.
    limits = __import__("_repl_trio.limits", fromlist=("DEFAULT",))
    setattr(limits, "DEFAULT", limits.Limits.overridden(dict(pair.split("=", 1) for pair in sys.argv[1:])))  # noqa: B010
    life = __import__("_repl_trio.worker.life", fromlist=("serve",))
    life.serve(standard, users)


if __name__ == "__main__":
    if tuple(sys.version_info[:2]) < OLDEST:
        refuse()
        sys.exit(1)
    start()
