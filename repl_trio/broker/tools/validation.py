"""Whether the arguments of a call fit the schema of its tool, decided before anything is sent.

A schema that is none cannot decide: its tool is called all the same, and a note says that nothing was checked. What
does not run step by step (regular expressions, above all) is the judge's, and so is what takes too many steps here.
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

import trio

from ...errors import BrokerError
from ...limits import Limits
from ...wire import jsontext
from .findings import Verdict
from .judge import Judge
from .schemas import Reading, read, survey
from .signatures import signature

if TYPE_CHECKING:
    from . import verdict

_KEPT = 8_388_608
"""characters of schemas whose reading is remembered; the oldest go first."""


class _Rules:
    """A schema and what was read of it."""

    def __init__(self, schema: object, reading: Reading) -> None:
        self.schema = schema
        self.reading = reading
        self.checker: verdict.Checker | None = None


class Validation:
    """Checks arguments against schemas; one for the broker, since it remembers each schema that it has read."""

    def __init__(self, limits: Limits, judge: Judge) -> None:
        self._limits = limits
        self._judge = judge
        self._known: dict[str, _Rules] = {}  # by the schema's text: a peer may send the same one with every listing
        self._kept = 0

    async def check(self, schema: object, arguments: dict[str, object], server: str, tool: str) -> str:
        """Check the arguments of one call; returns "" or, when the schema cannot decide, why nothing was checked.

        Raises `BrokerError`: BAD_ARGUMENTS with the place and the rule of each fault, LIMIT_REACHED for what is over a
        bound or took too long, CATALOGUE_FAULT for a schema that refers to another document. Nothing has been sent.
        """
        try:
            survey(arguments, self._limits, self._limits.argument_nodes, "the arguments")
            rules = self._rules(schema)
            found = Verdict(broken=rules.reading.fault) if rules.reading.fault else await self._judged(rules, arguments)
        except BrokerError as error:
            raise BrokerError(error.code, f"{tool} of {server}: {error.message}", server=server, tool=tool) from None
        if found.outside:
            raise BrokerError(
                "CATALOGUE_FAULT",
                f"the schema of {tool} of {server} refers to {found.outside}, which is not in it; nothing is fetched, "
                "so these arguments cannot be checked",
                server=server,
                tool=tool,
            )
        if found.findings:
            faults = "; ".join(f"{one.pointer or 'the object'} {one.words} (rule {one.rule})" for one in found.findings)
            raise BrokerError(
                "BAD_ARGUMENTS",
                f"the arguments do not fit {tool} of {server}: {faults}. It takes {signature(tool, schema)}",
                server=server,
                tool=tool,
            )
        return (
            f"the arguments were not checked, because the schema of {tool} is broken: {found.broken}"
            if found.broken
            else ""
        )

    def _rules(self, schema: object) -> _Rules:
        try:
            text = jsontext.dumps(schema)
        except (TypeError, ValueError):
            return _Rules(schema, read(schema, self._limits))  # which says what is wrong with it
        rules = self._known.get(text)
        if rules is None:
            rules = self._known[text] = _Rules(schema, read(schema, self._limits))
            self._kept += len(text)
            while self._kept > _KEPT:
                oldest = next(iter(self._known))
                del self._known[oldest]
                self._kept -= len(oldest)
        return rules

    async def _judged(self, rules: _Rules, arguments: dict[str, object]) -> Verdict:
        try:
            size = len(jsontext.dumps(arguments))
        except (TypeError, ValueError):
            raise BrokerError("BAD_ARGUMENTS", "the arguments are not JSON") from None
        if not rules.reading.apart:
            library = await _library()
            if rules.checker is None:
                rules.checker = library.Checker(rules.schema, rules.reading.dialect, self._limits.check_steps)
            try:
                here: Verdict = rules.checker.check(arguments, size)
            except library.Overrun:
                pass
            else:
                return here
        return await self._judge.verdict(rules.schema, rules.reading.dialect, arguments)


class _Library:
    """`verdict` and the validator below it, once they are loaded whole: a module is in `sys.modules` before that."""

    verdict: Any = None


async def _library() -> Any:
    if _Library.verdict is None:
        try:
            _Library.verdict = await trio.to_thread.run_sync(_load)
        except RuntimeError as error:
            # The user's processes and threads are at their bound.
            raise BrokerError("LIMIT_REACHED", f"the arguments could not be checked: no thread ({error})") from None
    return _Library.verdict


def _load() -> object:
    # The garbage collector finds nothing among a hundred new modules, and holds the interpreter while it looks.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(f"{__package__}.verdict")
    finally:
        if collecting:
            gc.enable()
