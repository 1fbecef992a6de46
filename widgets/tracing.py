"""How each token of a request came: accepted draft, correction, bonus or plain, cycle by cycle."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mtplx_kernel.engine.request import Decodes, Generation, TextStream
from mtplx_kernel.engine.timeline import DecodeWindow, last_kind, origins
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.widgets.rates import counted

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

UNKNOWN = "unknown"
MEANING = {
    "accepted": "accepted draft",
    "correction": "correction of a wrong draft",
    "bonus": "bonus after right drafts",
    "plain": "plain, nothing drafted",
    UNKNOWN: "not recorded any more",
}
NAMED = 8
"""So many of the last requests are named where one is not found."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The text that one token released, maybe none, and how the token came.

    Attributes
    ----------
    depth
        The place of an accepted draft among its cycle's drafts, from 1; 0 for others.
    cycle
        The number of its cycle, from 1; 0 where it is unknown.
    """

    text: str
    kind: str
    depth: int
    cycle: int


@dataclass(frozen=True, slots=True)
class CycleLine:
    """One cycle of a request.

    Attributes
    ----------
    ms
        Since the cycle before it; None for the first that is known.
    last
        How the token after the accepted drafts came.
    by
        Who drafted; None where nobody did.
    rows
        How many requests shared its forward.
    """

    number: int
    ms: float | None
    drafted: int
    accepted: int
    tokens: int
    last: str
    by: str | None
    rows: int

    @property
    def cells(self) -> tuple[str, ...]:
        """As text: number, milliseconds, drafter, drafts right, rows."""
        ms = "" if self.ms is None else f"{self.ms:.1f}"
        right = f"{self.accepted}/{self.drafted}" if self.drafted else "none"
        return (str(self.number), ms, self.by or "", right, str(self.rows))


@dataclass(frozen=True, slots=True)
class Trace:
    """One request, token by token.

    Attributes
    ----------
    running
        Whether it has not ended.
    pieces
        All its tokens, without an end token.
    cycles
        Those that are remembered.
    """

    request_id: str
    running: bool
    pieces: tuple[Piece, ...]
    cycles: tuple[CycleLine, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Tokens by how they came, of those that occur."""
        found = Counter(piece.kind for piece in self.pieces)
        return {kind: found[kind] for kind in MEANING if found[kind]}

    @property
    def summary(self) -> str:
        """In one line."""
        said = f"{self.request_id}: {counted(len(self.pieces), 'token')}"
        drafted = sum(cycle.drafted for cycle in self.cycles)
        accepted = sum(cycle.accepted for cycle in self.cycles)
        if self.cycles:
            n = sum(cycle.tokens for cycle in self.cycles)
            known = len(self.pieces) - self.counts.get(UNKNOWN, 0)
            said += f", the last {known} of them" if known < len(self.pieces) else ""
            said += " and an end token" if n > known else ""
            said += f" in {counted(len(self.cycles), 'cycle')} ({n / len(self.cycles):.2f} a cycle)"
        if drafted:
            said += f", {accepted} of {counted(drafted, 'draft')} right ({accepted / drafted:.0%})"
        return said + (", not ended" if self.running else "")


def tracer_of(engine: Engine, request: Generation | str | None = None) -> Tracer:
    """What follows a request of an engine.

    Parameters
    ----------
    request
        Its result, or its id; None takes the newest request.

    Raises
    ------
    InvalidRequest
        If no request of that id is remembered, or there is none at all.
    """
    tokenizer = engine.tokenizer
    if isinstance(request, Generation):
        return Tracer(request.window, tokenizer, request.token_ids)
    windows = engine.timeline.windows()
    if not windows:
        raise InvalidRequest("there was no request yet; ask something first")
    if request is None:
        return Tracer(windows[-1], tokenizer)
    window = engine.timeline.find(request)
    if window is None:
        last = ", ".join(w.request_id for w in windows[-NAMED:])
        raise InvalidRequest(f"no request {request!r} is remembered; the last ones: {last}")
    return Tracer(window, tokenizer)


class Tracer:
    """Follows one request; what was told before is not decoded again.

    Parameters
    ----------
    window
        Its decode window.
    tokenizer
        Makes text of ids.
    ids
        All ids of its answer; None takes those that the window remembers.
    """

    def __init__(
        self, window: DecodeWindow, tokenizer: Decodes, ids: Sequence[int] | None = None
    ) -> None:
        self._window = window
        self._all = ids
        # As the engine releases it, but for stop strings: each token is shown with its text.
        self._stream = TextStream(tokenizer, window.context)
        self._texts: list[str] = []
        self._whole = False
        # A view's thread and whoever asks for its picture may come at once.
        self._lock = threading.Lock()

    @property
    def running(self) -> bool:
        """Whether the request has not ended."""
        return self._window.ended is None

    def trace(self) -> Trace:
        """What is known now."""
        with self._lock:
            return self._trace()

    def _trace(self) -> Trace:
        running = self.running  # asked first: after its end nothing is recorded
        seen = self._window.cycles.remembered()
        lost = 0 if self._all is not None else seen.dropped_tokens
        known = seen.token_ids if self._all is None else self._all
        self._texts += [""] * (lost - len(self._texts))
        for token in known[len(self._texts) - lost :]:
            self._texts.append(self._stream.add(token))
        if not running and not self._whole:
            self._whole = True
            rest = self._stream.finish()
            if rest:
                self._texts[-1] += rest
        pieces = [
            Piece(text, origin.kind, origin.depth, origin.cycle + 1)
            for text, origin in zip(self._texts, origins(seen), strict=False)
        ]
        lines, before = list[CycleLine](), None
        for number, cycle in enumerate(seen.cycles, seen.dropped + 1):
            ms = None if before is None else (cycle.at - before) * 1000
            before = cycle.at
            counts = (cycle.drafted, cycle.accepted, cycle.tokens)
            kind = last_kind(cycle)
            lines.append(CycleLine(number, ms, *counts, kind, cycle.drafter, cycle.rows))
        return Trace(self._window.request_id, running, tuple(pieces), tuple(lines))
