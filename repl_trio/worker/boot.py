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


def finder_of(root):
    # type: (str) -> object
    """A finder for the modules below `root`, which is the package `_repl_trio`.

    Each gets builtins of its own: a cell that sets `builtins.len = None` breaks its own code and not the worker's.
    """
    machinery = __import__("_frozen_importlib_external")
    private = dict(vars(__import__("builtins")))

    class Loader(machinery.SourceFileLoader):  # type: ignore[misc,name-defined]
        def exec_module(self, module):  # type: ignore[no-untyped-def]
            module.__dict__["__builtins__"] = private
            machinery.SourceFileLoader.exec_module(self, module)

    class Finder:
        def find_spec(self, name, _path=None, _target=None):  # type: ignore[no-untyped-def]
            parts = name.split(".")
            if parts[0] != "_repl_trio":
                return None
            base = os.path.join(root, *parts[1:])
            folders = [base] if os.path.isdir(base) else None
            file = os.path.join(base, "__init__.py") if folders else base + ".py"
            loader = Loader(name, file)
            return machinery.spec_from_file_location(name, file, loader=loader, submodule_search_locations=folders)

    return Finder()


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
    # Before others: those of site's .pth files look at folders of the user's.
    finders = [finder_of(os.path.dirname(here))] + [
        finder for finder in sys.meta_path if getattr(finder, "__module__", "").startswith("_frozen_importlib")
    ]
    users_finders, sys.meta_path = sys.meta_path, finders  # type: ignore[assignment]
    # PYTHONDONTWRITEBYTECODE is meant for the user's files. Compiling ours at each start would double its cost.
    sys.dont_write_bytecode = False
    # Before anything of ours reads a limit: those that the server overrides come as NAME=VALUE.
    limits = __import__("_repl_trio.limits", fromlist=("DEFAULT",))
    setattr(limits, "DEFAULT", limits.Limits.overridden(dict(pair.split("=", 1) for pair in sys.argv[1:])))  # noqa: B010
    life = __import__("_repl_trio.worker.life", fromlist=("serve",))
    sys.meta_path = users_finders
    life.serve(standard, users, finders)


if __name__ == "__main__":
    if tuple(sys.version_info[:2]) < OLDEST:
        refuse()
        sys.exit(1)
    start()
