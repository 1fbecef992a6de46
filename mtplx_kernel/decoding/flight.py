"""One verify forward: what goes into it, and what is read from it at the cycle's one sync."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from mtplx_kernel.decoding.acceptance import verify
from mtplx_kernel.decoding.drafting import Computed, Drafts
from mtplx_kernel.decoding.logprob import TokenLogprob
from mtplx_kernel.decoding.params import Acceptance
from mtplx_kernel.decoding.reporting import Report
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.sampling import Draw, adjusted, draw, shaped

FAILED = -1
"""In place of a token whose logits are not finite."""


class Block:
    """Each row's pending tokens and drafts, as the target's next forward takes them.

    Parameters
    ----------
    rows
        The rows of the cycle.
    drafts
        How many drafts each has, and those that are known.
    computed
        The others.
    """

    def __init__(
        self, rows: Sequence[Row], drafts: Drafts, computed: Computed | None = None
    ) -> None:
        self.rows = list(rows)
        self.counts = drafts.counts
        self.by_forward = [ids is None for ids in drafts.known]
        self.known = _known(rows, drafts, computed)
        self.computed = computed
        self.starts = [row.committed for row in rows]
        self._pending = [row.pending for row in rows]
        self.lengths = [len(p) + k for p, k in zip(self._pending, self.counts, strict=True)]

    def tokens(self, width: int) -> mx.array:
        """Ids, shape (rows, width), right-padded."""
        padded, places = [], []
        for pending, count, ids in zip(self._pending, self.counts, self.known, strict=True):
            # -1 marks a draft that failed; it is fed as some token and never accepted.
            block = pending + [max(i, 0) for i in ids or []]
            padded.append(block + [0] * (width - len(block)))
            first = len(pending)
            here = range(first, first + count) if ids is None else range(0)
            places.append([i - first if i in here else -1 for i in range(width)])
        if self.computed is None:
            return mx.array(padded)
        place = mx.array(places)
        drafted = mx.maximum(self.computed.tokens, 0)
        drafted = mx.take_along_axis(drafted, mx.maximum(place, 0), axis=1)
        return mx.where(place >= 0, drafted, mx.array(padded, dtype=mx.int32))

    def verified(self, width: int) -> list[int]:
        """Which of rows * width positions tell what follows the last pending token or a draft."""
        return [
            r * width + i
            for r, (length, count) in enumerate(zip(self.lengths, self.counts, strict=True))
            for i in range(length - count - 1, length)
        ]

    def drafts_of(self, r: int) -> mx.array:
        """Row r's drafts, int32 of shape (count,)."""
        ids = self.known[r]
        if ids is not None:
            return mx.array(ids, dtype=mx.int32)
        assert self.computed is not None
        return self.computed.tokens[r, : self.counts[r]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verify says of one row.

    Attributes
    ----------
    drafts
        What was drafted.
    tokens
        The accepted drafts and the token after them; -1 where its logits are not finite.
    bonus
        Whether that token is taken; if not, the last draft is fed again to find it.
    logprobs
        What to report of each of the tokens; empty where nothing is.
    """

    drafts: list[int]
    tokens: list[int]
    bonus: bool = True
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def accepted(self) -> int:
        """How many drafts were accepted."""
        return len(self.tokens) - 1

    @property
    def taken(self) -> list[int]:
        """The tokens that the row gets."""
        return self.tokens if self.bonus else self.tokens[:-1]


@dataclass(slots=True)
class Flight:
    """A verify forward that was launched and not yet read.

    Attributes
    ----------
    starts
        Where each row's caches stood.
    counts
        Drafts of each row.
    judged
        Which rows' drafts were judged on the device: those have two numbers in `flat`, how many
        were accepted and the token after them; the others the target's own token after their last
        pending token and after each draft.
    known
        Drafts that the host knows.
    flat
        int32: the numbers of one row after the other, then the drafts that it does not know.
    committed
        Whether the caches already took it as right.
    reports
        Log-probabilities for the rows that report them, by the row's place among the rows.
    """

    rows: list[Row]
    starts: list[int]
    counts: list[int]
    judged: list[bool]
    known: list[list[int] | None]
    flat: mx.array
    committed: bool = False
    reports: dict[int, Report] = field(default_factory=dict)

    @classmethod
    def over(cls, block: Block, logits: mx.array) -> Flight:
        """Judge a block, given the logits of its verified positions, shape (positions, ids)."""
        rows, counts = block.rows, block.counts
        judged = [
            count > 0 and not row.params.greedy and row.params.acceptance is not Acceptance.COUPLED
            for row, count in zip(rows, counts, strict=True)
        ]
        draws = _draws(block)
        parts = _targets(block, draws, logits, judged)
        parts += [block.drafts_of(r) for r, ids in enumerate(block.known) if ids is None]
        flat = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        reports = _reports(block, draws, logits, flat, judged)
        return cls(rows, block.starts, counts, judged, block.known, flat, reports=reports)

    @classmethod
    def ahead(cls, rows: list[Row], logits: mx.array) -> Flight:
        """The flight after one that is not read yet: one token a row, from logits (rows, ids)."""
        draws = [Draw(row.params, row.seed, len(row.ids) + 1, (), 1) for row in rows]
        n, flat = len(rows), draw(logits, draws)
        starts = [len(row.ids) for row in rows]
        reports = {
            r: Report.of(adjusted(logits[r : r + 1], d), flat[r : r + 1], d.params.logprobs)
            for r, d in enumerate(draws)
            if d.params.logprobs is not None
        }
        known: list[list[int] | None] = [[] for _ in rows]
        return cls(rows, starts, [0] * n, [False] * n, known, flat, reports=reports)

    @property
    def arrays(self) -> list[mx.array]:
        """All that `read` needs."""
        reported = [a for report in self.reports.values() for a in (report.ids, report.logprobs)]
        return [self.flat, *reported]

    @property
    def drafted(self) -> bool:
        """Whether there are drafts in it."""
        return any(self.counts)

    def fits(self, rows: Sequence[Row]) -> bool:
        """Whether this is the next cycle of just these rows."""
        return (
            len(rows) == len(self.rows)
            and all(a is b for a, b in zip(rows, self.rows, strict=True))
            and [row.committed for row in rows] == self.starts
        )

    def read(self) -> list[Verdict]:
        """What was found: the one host synchronisation of a cycle."""
        if self.reports:
            mx.eval(self.arrays)
        numbers: list[int] = self.flat.tolist()  # type: ignore[assignment]
        found, start = [], 0
        for count, judged in zip(self.counts, self.judged, strict=True):
            end = start + (2 if judged else count + 1)
            found.append(numbers[start:end])
            start = end
        verdicts = []
        for r, (row, count, judged, ids, own) in enumerate(
            zip(self.rows, self.counts, self.judged, self.known, found, strict=True)
        ):
            if ids is None:
                ids, start = numbers[start : start + count], start + count
            accepted = own[0] if judged else _agreement(ids, own)
            kept = [max(i, 0) for i in ids[:accepted]]
            tokens = [*kept, own[1]] if judged else own[: accepted + 1]
            omitted = row.omit_bonus and 0 < len(ids) == accepted
            told = self.reports[r].read(tokens) if r in self.reports else ()
            verdicts.append(Verdict(ids, tokens, not omitted, told))
        return verdicts


def _known(
    rows: Sequence[Row], drafts: Drafts, computed: Computed | None
) -> list[list[int] | None]:
    """The drafts that the host knows: it must where what follows one depends on it."""
    wanted = [ids is None and r.conditioned for r, ids in zip(rows, drafts.known, strict=True)]
    if computed is None or not any(wanted):
        return drafts.known
    numbers: list[list[int]] = computed.tokens.tolist()  # type: ignore[assignment]
    return [
        found[:count] if want else ids
        for found, count, want, ids in zip(
            numbers, drafts.counts, wanted, drafts.known, strict=True
        )
    ]


def _draws(block: Block) -> list[Draw]:
    """What is to be drawn for each row."""
    draws = []
    for row, ids, count in zip(block.rows, block.known, block.counts, strict=True):
        fed = [max(i, 0) for i in ids or []]
        allowed = None if row.constraint is None else row.constraint.allowed(fed)
        draws.append(Draw(row.params, row.seed, len(row.ids), row.ids + fed, count + 1, allowed))
    return draws


def _targets(
    block: Block, draws: Sequence[Draw], logits: mx.array, judged: Sequence[bool]
) -> list[mx.array]:
    """The numbers of `Flight.flat` that the logits give, in row order."""
    if not any(judged):
        return [draw(logits, draws)]
    parts, start = [], 0
    for r, d in enumerate(draws):
        own, start = logits[start : start + d.count], start + d.count
        parts.append(mx.stack(list(_judged(block, r, own, d))) if judged[r] else draw(own, [d]))
    return parts


def _judged(block: Block, r: int, logits: mx.array, d: Draw) -> tuple[mx.array, mx.array]:
    """Judge row r's drafts by its acceptance rule: how many are accepted, and the token after."""
    computed, drafts = block.computed, block.drafts_of(r)
    logprobs = computed.logprobs[r] if computed is not None and block.by_forward[r] else None
    return verify(
        str(d.params.acceptance),
        shaped(adjusted(logits, d), d.params),
        mx.maximum(drafts, 0),
        logprobs,
        computed.columns if computed is not None and logprobs is not None else None,
        d.seed,
        d.position,
    )


def _reports(
    block: Block, draws: Sequence[Draw], logits: mx.array, flat: mx.array, judged: Sequence[bool]
) -> dict[int, Report]:
    """Log-probabilities of what each row gets, for the rows that report them."""
    reports = {}
    start = first = 0
    for r, d in enumerate(draws):
        numbers = 2 if judged[r] else d.count
        if d.params.logprobs is not None:
            found = flat[first : first + numbers]
            tokens = _kept(block.drafts_of(r), found) if judged[r] else found
            own = adjusted(logits[start : start + d.count], d)
            reports[r] = Report.of(own, tokens, d.params.logprobs)
        start, first = start + d.count, first + numbers
    return reports


def _kept(drafts: mx.array, found: mx.array) -> mx.array:
    """What judged drafts come to by position: those that were accepted, then the token after."""
    behind = mx.concatenate([drafts, mx.zeros((1,), dtype=mx.int32)])
    return mx.where(mx.arange(behind.size) == found[0], found[1], behind)


def _agreement(drafts: Sequence[int], targets: Sequence[int]) -> int:
    """Length of the longest prefix of the drafts that the target would have produced."""
    for i, draft in enumerate(drafts):
        if draft != targets[i]:
            return i
    return len(drafts)
