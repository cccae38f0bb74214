"""An anonymous file divided into blocks: bytes on disk that nobody else can open and that end with this process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

BLOCK = 65_536
"""bytes. One block; the last one of each artifact is half empty on average."""

_FLAGS = os.O_RDWR | os.O_CLOEXEC


class BlockFile:
    """`count` blocks at most, handed out by number. The file is opened with the first block and has no name.

    Nothing here raises: what the disk does not take is told by the return value.
    """

    def __init__(self, count: int, folders: Sequence[str]) -> None:
        self._count = count
        self._folders = folders
        self._used = 0  # blocks that were ever handed out
        self._free: list[int] = []
        self._fd = -1
        self.fault = ""  # what the operating system said last

    def take(self) -> int | None:
        """The number of a free block; None when there is none or no file can be opened."""
        if self._fd < 0 and not self._open():
            return None
        if self._free:
            return self._free.pop()
        if self._used >= self._count:
            return None
        self._used += 1
        return self._used - 1

    @property
    def full(self) -> bool:
        """Whether every block is in use."""
        return not self._free and self._used >= self._count

    def give_back(self, blocks: Sequence[int]) -> None:
        """These blocks may be handed out again."""
        self._free += blocks

    def write(self, block: int, start: int, piece: memoryview) -> int:
        """Write into a block from byte `start` of it on; how many bytes the disk took."""
        done = 0
        try:
            while done < len(piece):
                done += os.pwrite(self._fd, piece[done:], block * BLOCK + start + done)
        except OSError as error:
            self.fault = error.strerror or "the disk refused it"
        return done

    def read(self, block: int, start: int, size: int) -> bytes:
        """Bytes of a block; fewer than asked for where the disk fails."""
        try:
            return os.pread(self._fd, size, block * BLOCK + start)
        except OSError as error:
            self.fault = error.strerror or "the disk refused it"
            return b""

    def close(self) -> None:
        """Give the file back to the system. No block can be taken afterwards."""
        self._count = self._used = 0
        self._free.clear()
        self._folders = ()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> bool:
        for folder in self._folders:
            with suppress(OSError):
                self._fd = _nameless(folder)
                return True
        self.fault = self.fault or "no temporary folder takes a file"
        return False


def _nameless(folder: str) -> int:
    """A new file in `folder` without a name, so that nothing is left of it whatever ends this process."""
    nameless = getattr(os, "O_TMPFILE", 0)
    if nameless:
        with suppress(OSError):  # some file systems know only files with names
            return os.open(folder, nameless | os.O_EXCL | _FLAGS, 0o600)
    path = os.path.join(folder, f"repl-trio-{os.urandom(8).hex()}")
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | _FLAGS, 0o600)
    os.unlink(path)
    return fd
