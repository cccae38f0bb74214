"""The program inside the child: it holds one generation's interpreter and runs its cells, one at a time.

Started as `PYTHON boot.py` with the five descriptors of `docs/wire.md`. Runs on CPython 3.10 and newer, needs nothing
installed, and imports only the standard library and our own sans-IO modules, by relative names: boot loads the package
under the private name `_repl_trio`, so that a cell's `import repl_trio` finds what the user's own path has.
"""
