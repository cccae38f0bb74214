"""The fronts of `sh` and `ash`, what they return and raise. The work is in `shell` and `ash`, loaded on first use."""

from __future__ import annotations

from ..limits import DEFAULT
from .isolation import isolated_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    Command = str | Sequence[str | os.PathLike[str]]


class ShResult(str):
    """Standard output of a finished command, as a `str`, with everything else as attributes.

    `stdout`, `stderr`: text (UTF-8, other bytes replaced), a trailing newline kept, the middle left out when there was
    more than a mebibyte. `returncode`: exit status, negative for a signal. `ok`: whether it is 0. `truncated`: whether
    a middle was left out.
    """

    __slots__ = ("returncode", "stderr", "truncated")

    stderr: str
    returncode: int
    truncated: bool

    @property
    def stdout(self) -> str:
        """Standard output as a plain `str`."""
        return str.__str__(self)

    @property
    def ok(self) -> bool:
        """Whether the command ended with status 0."""
        return self.returncode == 0


class ShError(RuntimeError):
    """The command of an `sh` or `ash` ended with another status than 0. `result` is its `ShResult`."""

    def __init__(self, message: str, result: ShResult) -> None:
        super().__init__(message)
        self.result = result


class ShTimeout(TimeoutError):
    """The command of an `sh` or `ash` was killed at its time limit. `result` is what it had written until then."""

    def __init__(self, message: str, result: ShResult) -> None:
        super().__init__(message)
        self.result = result


def sh(
    cmd: Command,
    *,
    check: bool = True,
    timeout: float | None = DEFAULT.sh_timeout,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> ShResult:
    """Run a shell command and return its standard output as a `str` with attributes.

        files = sh("ls -1").splitlines()
        r = sh(["git", "status"], check=False);  r.ok, r.returncode, r.stderr

    cmd      a string for `/bin/sh -c`, or a list of arguments to run without a shell
    check    raise ShError (a RuntimeError, with `.result`) when the status is not 0
    timeout  seconds (120), None for no limit; then the command is killed: ShTimeout (a TimeoutError, with `.result`)
    cwd      working directory; Python's current one by default
    env      the whole environment, in place of `os.environ`

    The result is standard output, trailing newline kept, with attributes .stdout .stderr .returncode .ok .truncated.
    Output is also shown live, as the cell's own. Standard input is empty. The call returns when the command has
    ended; what it left in the background is then killed (use subprocess.Popen for a server that shall stay).
    The time limit of the cell (also 120 s by default) comes on top. To run several at once: `ash`.
    """
    return isolated_import("_repl_trio.worker.shell").run(cmd, timeout, cwd, env, check=check)  # type: ignore[no-any-return]


async def ash(
    cmd: Command,
    *,
    check: bool = True,
    timeout: float | None = DEFAULT.sh_timeout,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> ShResult:
    """`sh` for asyncio: the same options, result and errors, and other tasks go on meanwhile.

        r = await ash("make test", check=False)
        import asyncio;  a, b = await asyncio.gather(ash("sleep 1; echo a"), ash("sleep 1; echo b"))

    Works where asyncio does: with top-level `await`, and inside `asyncio.run(...)`. A task that is cancelled (a time
    limit, `asyncio.wait_for`, an interrupt, the end of its cell) kills its command with everything in its group first.
    See `help(sh)` for the rest.
    """
    return await isolated_import("_repl_trio.worker.ash").run(cmd, timeout, cwd, env, check=check)  # type: ignore[no-any-return]
