"""What a cell installed or wrote, the next one imports, also when it was looked for in vain before."""

from __future__ import annotations

import os
import sys


class Arrivals:
    """What the import system remembers of folders, forgotten between two cells.

    A finder that finds nothing: a cell that imports nothing new pays nothing for what the one before may have made.
    """

    def __init__(self) -> None:
        #: A cell has ended since the last look.
        self.stale = False
        site = sys.modules.get("site")
        folder = getattr(site, "USER_SITE", None) if getattr(site, "ENABLE_USER_SITE", None) else None
        #: The user's own packages, while there is no such folder: `pip` makes it where it may not write elsewhere.
        self._user_site = folder if type(folder) is str and not os.path.isdir(folder) else None

    def find_spec(self, _name: str, _path: object = None, _target: object = None) -> None:
        """The first import of a cell looks at the disk."""
        if self.stale:
            self.stale = False
            self._look()

    def _look(self) -> None:
        for path, finder in list(sys.path_importer_cache.items()):
            if finder is None:
                # There was no such folder when it was first looked at; there may be now.
                sys.path_importer_cache.pop(path, None)
            elif type(finder).__name__ == "FileFinder":
                # A zip file's reads its directory again, which is dear, and seldom changes.
                finder.invalidate_caches()  # type: ignore[attr-defined]
        if self._user_site is not None and os.path.isdir(self._user_site):
            # The interpreter puts it on the path at its start, if it is there. Its .pth files count from the next on.
            if self._user_site not in sys.path:
                sys.path.append(self._user_site)
            self._user_site = None
