"""The prompt: line editing on the terminal, in a thread, because prompt_toolkit brings an event loop of its own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import termios
from contextlib import suppress

import trio
from prompt_toolkit import PromptSession
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import Lexer, PygmentsLexer
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output

from .completeness import is_complete

_INDENT = "    "


class Cleared(Exception):
    """Ctrl-C at the prompt."""


class Ended(Exception):
    """Ctrl-D at an empty prompt, or the console is leaving."""


class Terminal:
    """The prompt on stdin, which must be a terminal. History lives as long as the object.

    Between two reads the terminal is as it was found, so that Ctrl-C is a signal while a cell runs.
    """

    def __init__(self, kind: str | None) -> None:
        self._found = termios.tcgetattr(sys.stdin.fileno())
        self._leaving = False
        self._session: PromptSession[str] = PromptSession(
            ">>> ",
            multiline=True,
            prompt_continuation="... ",
            history=InMemoryHistory(),
            key_bindings=_bindings(),
            lexer=_lexer(),
            output=_output(kind),
            interrupt_exception=Cleared,
            eof_exception=Ended,
        )

    async def read(self) -> str | None:
        """The next cell or command; None when there will be none. Cancelled: the prompt's thread is left behind."""
        while not self._leaving:
            try:
                return await trio.to_thread.run_sync(self._prompt, abandon_on_cancel=True)
            except Cleared:
                continue
            except (Ended, EOFError, OSError, termios.error):  # all but the first: the terminal is gone
                return None
        return None

    def leave(self) -> None:
        """End a `read`, now or to come."""
        # First the flag, then the look for a loop; the prompt does it the other way round, so one of both sees it.
        self._leaving = True
        loop = self._session.app.loop
        if loop is not None:
            with suppress(RuntimeError):  # the prompt has just ended by itself
                loop.call_soon_threadsafe(self._exit)

    def restore(self) -> None:
        """Give the terminal back as it was found, also behind the back of a prompt that was left in its thread."""
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._found)

    def _prompt(self) -> str:
        return self._session.prompt(handle_sigint=False, pre_run=self._check_leaving)

    def _check_leaving(self) -> None:
        if self._leaving:
            self._exit()

    def _exit(self) -> None:
        app = self._session.app
        if app.future is not None and not app.future.done():
            app.exit(exception=Ended())


def _output(kind: str | None) -> Output | None:
    if kind in (None, "dumb", "unknown"):
        return None  # prompt_toolkit then edits without moving the cursor
    output = create_output(always_prefer_tty=True)
    if isinstance(output, Vt100_Output):
        # A terminal that does not answer the question for the cursor's position costs two seconds and a warning, and an
        # answer that comes late would be taken for input. Only menus need it.
        output.enable_cpr = False
    return output


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter", filter=has_focus(DEFAULT_BUFFER))
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
            return
        opens_block = buffer.document.current_line_before_cursor.rstrip().endswith(":")
        buffer.newline()
        if opens_block:
            buffer.insert_text(_INDENT)

    return bindings


def _lexer() -> Lexer | None:
    """Python colours if pygments happens to be here; it is no dependency."""
    if importlib.util.find_spec("pygments") is None:
        return None
    return PygmentsLexer(importlib.import_module("pygments.lexers.python").PythonLexer)
