"""What a cycle did for one row: its verdict taken into the row, up to whatever ends it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat

from mtplx_kernel.decoding.flight import FAILED, Verdict
from mtplx_kernel.decoding.logprob import TokenLogprob
from mtplx_kernel.decoding.row import Row

NOT_FINITE = "the model's logits are not finite (NaN or infinity) at token {position}"


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token, the text that it released, and what is to be reported of it."""

    id: int
    text: str
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cycle did for one row.

    Attributes
    ----------
    tokens
        The emitted tokens, in order, without an end token.
    drafted, accepted
        Drafts verified, and how many of them were right and came before the end.
    ended
        "stop" or "length" once the row has ended.
    end_token
        Whether a token ended it, which is not among `tokens`.
    error
        Why the row cannot go on.
    drafter
        Who drafted; None where nobody did.
    """

    row: Row
    tokens: tuple[Token, ...] = ()
    drafted: int = 0
    accepted: int = 0
    ended: str | None = None
    end_token: bool = False
    error: str | None = None
    drafter: str | None = None


def emit(row: Row, verdict: Verdict, drafter: str | None = None) -> Outcome:
    """Append accepted tokens to the row, up to whatever ends it; `drafter` made its drafts."""
    emitted: list[Token] = []
    ended = error = None
    end_token = False
    for token, told in zip(verdict.taken, verdict.logprobs or repeat(None), strict=False):
        if row.constraint is not None and row.constraint.error is not None:
            error = row.constraint.error
        elif token == FAILED:
            error = NOT_FINITE.format(position=len(row.ids))
        elif token in row.end_ids:
            ended, end_token = "stop", True
        elif row.constraint is not None and (refusal := row.constraint.advance(token)):
            error = refusal
        else:
            row.ids.append(token)
            if told is not None:
                row.logprobs.append(told)
            try:
                emitted.append(Token(token, row.text.add(token), told))
            except Exception as failure:  # a tokenizer that cannot decode what the model said
                error = f"the text cannot be decoded: {type(failure).__name__}: {failure}"
            complete = row.constraint is not None and row.constraint.complete
            ended = "stop" if row.text.stopped or complete else "length" if row.room <= 0 else None
        if ended or error:
            break
    accepted = min(verdict.accepted, len(emitted) + end_token)
    ended = None if error else ended
    return Outcome(
        row,
        tuple(emitted),
        len(verdict.drafts),
        accepted,
        ended,
        end_token,
        error,
        drafter if verdict.drafts else None,
    )
