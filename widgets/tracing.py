"""How each token of a request came: accepted draft, correction, bonus or plain, cycle by cycle."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mtplx_kernel.engine.request import Generation
from mtplx_kernel.engine.timeline import DecodeWindow, last_kind, origins
from mtplx_kernel.errors import InvalidRequest

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
CONTEXT_TOKENS = 6
"""Tokens decoded in front of a new one: spacing and joined characters depend on them."""
MAX_UNDECIDED = 3
"""Tokens that may wait for the rest of their character."""
NAMED = 8
"""So many of the last requests are named where one is not found."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


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
        said = f"{self.request_id}: {len(self.pieces)} tokens"
        drafted = sum(cycle.drafted for cycle in self.cycles)
        accepted = sum(cycle.accepted for cycle in self.cycles)
        if self.cycles:
            n = sum(cycle.tokens for cycle in self.cycles)
            said += f" in {len(self.cycles)} cycles ({n / len(self.cycles):.2f} a cycle)"
        if drafted:
            said += f", {accepted} of {drafted} drafts right ({accepted / drafted:.0%})"
        return said + (", running" if self.running else "")


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
    decode = engine.tokenizer.decode
    if isinstance(request, Generation):
        return Tracer(request.window, decode, request.token_ids)
    windows = engine.timeline.windows()
    if not windows:
        raise InvalidRequest("there was no request yet; ask something first")
    if request is None:
        return Tracer(windows[-1], decode)
    window = engine.timeline.find(request)
    if window is None:
        last = ", ".join(w.request_id for w in windows[-NAMED:])
        raise InvalidRequest(f"no request {request!r} is remembered; the last ones: {last}")
    return Tracer(window, decode)


class Tracer:
    """Follows one request; what was told before is not decoded again.

    Parameters
    ----------
    window
        Its decode window.
    decode
        Text of ids, as the tokenizer has it.
    ids
        All ids of its answer; None takes those that the window remembers.
    """

    def __init__(
        self,
        window: DecodeWindow,
        decode: Callable[[list[int]], str],
        ids: Sequence[int] | None = None,
    ) -> None:
        self._window = window
        self._decode = decode
        self._all = ids
        self._texts: list[str] = []
        # The last ids: up to `_whole` they are whole characters, whose text is `_seen`.
        self._ids: list[int] = []
        self._whole, self._seen = 0, ""
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
        recorded, running = self._window.cycles, self.running
        cycles, dropped, found = list(recorded), recorded.dropped, origins(recorded)
        lost = 0 if self._all is not None else recorded.dropped_tokens
        known = recorded.token_ids if self._all is None else self._all
        self._texts += [""] * (lost - len(self._texts))
        for token in known[len(self._texts) - lost :]:
            self._texts.append(self._text_of(token))
        pieces = [
            Piece(text, origin.kind, origin.depth, origin.cycle + 1)
            for text, origin in zip(self._texts, found, strict=False)
        ]
        lines, before = list[CycleLine](), None
        for number, cycle in enumerate(cycles, dropped + 1):
            ms = None if before is None else (cycle.at - before) * 1000
            before = cycle.at
            counts = (cycle.drafted, cycle.accepted, cycle.tokens)
            kind = last_kind(cycle)
            lines.append(CycleLine(number, ms, *counts, kind, cycle.drafter, cycle.rows))
        return Trace(self._window.request_id, running, tuple(pieces), tuple(lines))

    def _text_of(self, token: int) -> str:
        """What the next token adds to the text; nothing while a character is not complete."""
        self._ids.append(token)
        now = self._decode(self._ids)
        if now.endswith(REPLACEMENT) and len(self._ids) - self._whole <= MAX_UNDECIDED:
            return ""
        text = now[len(self._seen) :]
        self._ids = self._ids[-CONTEXT_TOKENS:]
        self._whole, self._seen = len(self._ids), self._decode(self._ids)
        return text
