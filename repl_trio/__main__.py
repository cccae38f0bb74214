"""`repl-trio` and `python -m repl_trio`: pick the command and hand over."""

from __future__ import annotations

import sys

from .settings import parse, stdin_is_terminal


def main() -> int:
    """Run the command of `sys.argv` and return its exit status."""
    settings = parse(sys.argv[1:], terminal=stdin_is_terminal())
    # Each command imports what it needs, and only that: `serve` must answer before anything heavy is loaded.
    if settings.command == "serve":
        from .server.serve import serve

        return serve(settings)
    if settings.command == "doctor":
        from .console.doctor import doctor

        return doctor(settings)
    if settings.command == "exec":
        from .console.execute import execute

        return execute(settings)
    from .console.console import console

    return console(settings)


if __name__ == "__main__":
    sys.exit(main())
