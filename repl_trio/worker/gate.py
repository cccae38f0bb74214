"""Where an interrupt may land: in user code, and nowhere else.

All user code is called through one function, the gate. The SIGINT handler looks for the gate's frame on the stack: it
raises only below it, so an interrupt between the end of a cell and the worker's own next step cannot escape, whatever
the moment. (A flag that is cleared by a call in `finally` was measured to let hundreds of 60,000 through.) The gate's
caller holds the `try`. Parts of our own code that run below the gate and must not be torn are shielded; a part of them
that may wait for long can be opened again.

An interrupt that arrives during a run but outside user code is kept and lands at the next entry of the gate. One that
arrives between runs is late and dropped, unless it plainly belongs to the run that is about to begin.

SIGINT does not reach every cell: `os.system` makes the kernel throw it away, a cell may ignore, block or handle it, and
one that comes right before a blocking system call sleeps with it. So the server insists with a second signal, which
nobody uses and whose default is to do nothing: it lands what SIGINT should have landed and did not.
"""

from __future__ import annotations

import _frozen_importlib_external
import _signal
import _thread
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])


class _Interrupts:
    """The state of the current run's interrupts. Changed by the main thread only, signal handler included."""

    running = False  # a run is in progress
    pending = False  # an interrupt waits for the next entry of user code
    landed = False  # an interrupt was raised in, or cancelled, user code of this run
    count = 0  # how many have landed in this run
    insisted = 0  # how many the server has insisted on
    held = 0  # how many found an extension module being loaded
    raised = 0  # the identity of the exception that the last one was raised as
    early = False  # an interrupt came for the run that is about to begin
    land: Callable[[FrameType], None]  # how an interrupt lands at a frame: raises there, or cancels a task
    announced: Callable[[], bool]  # whether a run is about to begin and no earlier one can be meant
    thread = _thread.get_ident()  # the main thread, which loads this module: interrupts are its alone

    def waits_here(self) -> bool:
        """Whether an interrupt waits for the code that asks."""
        return self.pending and self.running and _thread.get_ident() == self.thread


interrupts = _Interrupts()
#: While these run, an extension module is being initialised. Many (NumPy's, all of Cython's) can be loaded once in the
#: life of a process: an interrupt in there costs the module for good.
_LOADING = frozenset(
    getattr(_frozen_importlib_external.ExtensionFileLoader, name).__code__ for name in ("create_module", "exec_module")
)
#: How many interrupts of a run wait for that: what is loaded for longer than a second is given up.
HELD = 2
_shielded: set[CodeType] = set()
_open: set[CodeType] = set()


def user_code(call: Callable[..., Any], *arguments: Any) -> Any:
    """The gate: call user code. Interrupts land below this frame; the caller holds the `try`."""
    if interrupts.pending:
        _land(sys._getframe())
    return call(*arguments)


_GATE = user_code.__code__
_SIGNALS = (_signal.SIGINT, _signal.SIGURG)


def outcome_of(call: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """Call user code: (its value, None), or (None, whatever exception left it)."""
    try:
        return user_code(call, *arguments), None
    except BaseException as error:  # noqa: BLE001 - whatever user code raises is the outcome of a run, never ours
        return None, error


def shielded(function: Function) -> Function:
    """Let no interrupt land inside `function`; one that comes meanwhile lands when it has ended."""
    _shielded.add(function.__code__)

    def shield(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        finally:
            if interrupts.waits_here():
                _interrupt(sys._getframe())

    return _named_like(function, shield)


def interruptible(function: Function) -> Function:
    """Let interrupts land inside `function` although a shielded one calls it; that one holds the `try`.

    One that came before, while the shield was up, lands at its beginning.
    """

    def opened(*arguments: Any, **named: Any) -> Any:
        if interrupts.waits_here():
            _land(sys._getframe())
        return function(*arguments, **named)

    _open.add(opened.__code__)
    return _named_like(function, opened)


def shielded_steps(function: Function) -> Function:
    """`shielded` for a coroutine function: for each of its steps, and those of what it awaits."""
    _shielded.add(function.__code__)

    async def shield(*arguments: Any, **named: Any) -> Any:
        try:
            return await function(*arguments, **named)
        finally:
            if interrupts.waits_here():
                _interrupt(sys._getframe())

    return _named_like(function, shield)


def interruptible_steps(function: Function) -> Function:
    """`interruptible` for a coroutine function."""

    async def opened(*arguments: Any, **named: Any) -> Any:
        if interrupts.waits_here():
            _land(sys._getframe())
        return await function(*arguments, **named)

    _open.add(opened.__code__)
    return _named_like(function, opened)


def _named_like(function: Function, wrapped: Any) -> Function:
    wrapped.__doc__ = function.__doc__
    wrapped.__name__ = function.__name__
    wrapped.__qualname__ = function.__qualname__
    return wrapped  # type: ignore[no-any-return]


def _land(frame: FrameType) -> None:
    """Let an interrupt land at `frame`, which is below the gate."""
    interrupts.pending = False
    interrupts.landed = True
    interrupts.count += 1
    try:
        interrupts.land(frame)
    except BaseException as error:
        interrupts.raised = id(error)
        raise


def _interrupt(frame: FrameType | None) -> None:
    """Let an interrupt land at `frame` if that is user code; else it waits."""
    here = frame
    while here is not None:
        code = here.f_code
        if code in _LOADING and interrupts.held < HELD:
            interrupts.held += 1
            break
        if code is _GATE or code in _open:
            assert frame is not None
            _land(frame)
            return
        if code in _shielded:
            break
        here = here.f_back
    interrupts.pending = True


def _on_sigint(_number: int, frame: FrameType | None) -> None:
    if interrupts.running:
        _interrupt(frame)
    else:
        interrupts.early = interrupts.announced()


def _on_sigurg(_number: int, frame: FrameType | None) -> None:
    """The server insists. Each time one interrupt more should have landed; if it has not, it lands now."""
    if not interrupts.running:
        return
    interrupts.insisted += 1
    # Code that took SIGINT for itself may be on its way out: the first time is not meant for it.
    if interrupts.count < interrupts.insisted and not (interrupts.insisted == 1 and _taken()):
        _interrupt(frame)


def _on_unraisable(unraisable: Any) -> None:
    """An interrupt that landed in a `__del__` or a weakref callback ended that alone: it counts as not landed."""
    if id(unraisable.exc_value) == interrupts.raised and not issubclass(unraisable.exc_type, Exception):
        # Another exception may get the place of this one in memory.
        interrupts.raised = 0
        interrupts.count -= 1
    else:
        sys.__unraisablehook__(unraisable)


def _taken() -> bool:
    """Whether the cell has given SIGINT another handler, or blocks it."""
    blocked = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    return _signal.getsignal(_signal.SIGINT) is not _on_sigint or _signal.SIGINT in blocked


def begin_run() -> None:
    """From here to `end_run`, interrupts belong to this run."""
    interrupts.landed = False
    interrupts.count = 0
    interrupts.insisted = 0
    interrupts.held = 0
    interrupts.raised = 0
    interrupts.pending = False
    interrupts.running = True
    # In this order: one that comes before the line above is early, one that comes after it is pending.
    if interrupts.early:
        interrupts.early = False
        interrupts.pending = True


def end_run() -> None:
    """Interrupts that arrive from here on are late and dropped. What the cell did to their handling is undone.

    Undone here and not when the next run begins: a late interrupt must not meet the cell's handler, which may be the
    one that ends the process, and one that the cell has blocked must come out as this run's.
    """
    install()
    interrupts.running = False
    interrupts.pending = False


def install() -> None:
    """Make both signals ours on the main thread: handled, and not blocked by an inherited mask or a cell's.

    `interrupts.land` and `interrupts.announced` must be in place.
    """
    if _signal.getsignal(_signal.SIGINT) is not _on_sigint:
        _signal.signal(_signal.SIGINT, _on_sigint)
    if _signal.getsignal(_signal.SIGURG) is not _on_sigurg:
        _signal.signal(_signal.SIGURG, _on_sigurg)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, _SIGNALS)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _on_unraisable
