"""The fronts of `checkpoint` and `restore` and what the first returns. The work is in `saved`, loaded on first use."""

from __future__ import annotations

from .isolation import isolated_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

#: Names that the sentence of a `Checkpoint` lists of each kind.
LISTED = 20
_WORK = "_repl_trio.worker.saved"


class Checkpoint:
    """What `checkpoint` did. `saved`: names. `skipped`: name -> reason. `path`: of the file. `size`: its bytes."""

    __slots__ = ("path", "saved", "size", "skipped")

    def __init__(self, path: str, saved: list[str], skipped: dict[str, str], size: int) -> None:
        self.path = path
        self.saved = saved
        self.skipped = skipped
        self.size = size

    def __repr__(self) -> str:
        reasons = [f"{name} ({reason})" for name, reason in self.skipped.items()]
        number = len(self.saved)
        told = f"saved {number} name{'' if number == 1 else 's'} in {self.path!r} ({self.size:,} bytes)"
        if self.saved:
            told += f": {_listed(self.saved)}"
        return f"{told}; skipped {len(reasons)}: {_listed(reasons)}" if reasons else told


def _listed(texts: list[str]) -> str:
    more = len(texts) - LISTED
    return ", ".join(texts[:LISTED]) + (f" and {more:,} more" if more > 0 else "")


def fronts(
    namespace: dict[str, object], given: Callable[[], frozenset[str]]
) -> tuple[Callable[..., Checkpoint], Callable[..., list[str]]]:
    """(`checkpoint`, `restore`) for this namespace, in which the names `given()` are ours."""

    def checkpoint(path: str | os.PathLike[str], names: Iterable[str] | None = None) -> Checkpoint:
        """Save names of this namespace in a file, from which `restore` brings them back after a reset or a crash.

            checkpoint("state.json")                  # what can be saved of all your names; the rest is .skipped
            checkpoint("state.json", ["rows", "n"])   # these, or an error and no file

        path   the file; its folder must exist. A relative one starts from Python's current directory
        names  default: all but modules, helpers, and names that begin with an underscore

        Saved are values of exactly these types, nested up to 100 deep: None, bool, int (up to 14,280 bits), finite
        float, str, list, and dict with str keys; no subclasses and no other objects, whose code never runs. What two
        names share becomes two copies. Returns an object with .saved (list of names), .skipped (dict of name to
        reason), .path and .size (bytes, at most 16 MiB in all).

        The file is replaced whole or not at all, readable by you alone, and never through a symbolic link. It is JSON.
        Raises ValueError (a name in `names` that cannot be saved), LookupError (one that does not exist), OSError.
        """
        return isolated_import(_WORK).save(namespace, given(), path, names)  # type: ignore[no-any-return]

    def restore(path: str | os.PathLike[str], names: Iterable[str] | None = None) -> list[str]:
        """Bring names back from a file that `checkpoint` wrote: sets them in this namespace and returns their list.

            restore("state.json")             # all that the file holds
            restore("state.json", ["rows"])   # these

        All or nothing: the whole file is read and checked first. Names that the file does not hold keep their values.
        Raises ValueError (no such file of ours, or damaged, or over 16 MiB), LookupError (a name in `names` that the
        file does not hold), OSError. A symbolic link is not followed.
        """
        return isolated_import(_WORK).load(namespace, given(), path, names)  # type: ignore[no-any-return]

    return checkpoint, restore
