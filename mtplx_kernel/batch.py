"""Several prompts in one cell: how they are split, and what came of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import overload

from mtplx_kernel.conversation import substitute
from mtplx_kernel.engine.request import FinishReason, Generation
from mtplx_kernel.errors import InvalidRequest, MTPLXError, RequestFailed

SEPARATOR = "---"
TITLE_WIDTH = 48
COMPLETE = (FinishReason.STOP, FinishReason.LENGTH)

Outcome = Generation | MTPLXError


def split_prompts(body: str) -> list[str]:
    """Split a cell at the lines that are exactly three dashes.

    Empty lines at the ends of a prompt are dropped; all else stays as it is.
    """
    prompts: list[list[str]] = [[]]
    for line in body.split("\n"):
        if line == SEPARATOR:
            prompts.append([])
        else:
            prompts[-1].append(line)
    return ["\n".join(lines).strip("\n") for lines in prompts]


def substitute_each(
    prompts: Sequence[str], names: Sequence[str], variables: dict[str, object]
) -> list[str]:
    """Put variables into prompts of which each uses those that it names.

    Raises
    ------
    InvalidRequest
        If a name is not defined, or occurs in no prompt.
    """
    # Whether names are defined and used is asked of all prompts together.
    substitute("\n".join(prompts), names, variables)
    return [
        substitute(prompt, [name for name in names if f"{{{name}}}" in prompt], variables)
        for prompt in prompts
    ]


def check_prompts(prompts: Sequence[str]) -> None:
    """Raise InvalidRequest if one is empty."""
    if len(prompts) == 1 and not prompts[0].strip():
        raise InvalidRequest("the prompt is empty; write one after the options")
    for n, prompt in enumerate(prompts, 1):
        if not prompt.strip():
            raise InvalidRequest(
                f"prompt {n} of {len(prompts)} is empty; write one, or take a line of "
                f"{SEPARATOR} out"
            )


def title(prompt: str) -> str:
    """A prompt's first words, on one line."""
    words = " ".join(prompt.split())
    return words if len(words) <= TITLE_WIDTH else f"{words[: TITLE_WIDTH - 2].rstrip()} …"


class BatchResult(Sequence[Outcome]):
    """What came of the prompts of one cell, in their order.

    An entry is a `Generation`, or the error that ended or refused its request; what a failed
    request had produced is the error's `generation`.

    Parameters
    ----------
    titles
        A short name for each entry.
    outcomes
        The entries.
    """

    def __init__(self, titles: Sequence[str], outcomes: Sequence[Outcome]) -> None:
        self._titles = tuple(titles)
        self._outcomes = tuple(outcomes)

    @overload
    def __getitem__(self, place: int) -> Outcome: ...

    @overload
    def __getitem__(self, place: slice) -> BatchResult: ...

    def __getitem__(self, place: int | slice) -> Outcome | BatchResult:
        if isinstance(place, slice):
            return BatchResult(self._titles[place], self._outcomes[place])
        return self._outcomes[place]

    def __len__(self) -> int:
        return len(self._outcomes)

    @property
    def texts(self) -> list[str]:
        """The text of each entry; of a failed one, what it had produced."""
        return [text_of(outcome) for outcome in self]

    @property
    def errors(self) -> list[MTPLXError]:
        """The entries that are errors."""
        return [outcome for outcome in self if isinstance(outcome, MTPLXError)]

    @property
    def complete(self) -> int:
        """How many entries have a complete answer."""
        return sum(isinstance(o, Generation) and o.finish_reason in COMPLETE for o in self)

    @property
    def tokens(self) -> int:
        """All tokens that were generated."""
        return sum(g.stats.completion_tokens for g in self._generations())

    @property
    def seconds(self) -> float:
        """From the first submit to the last end."""
        windows = [g.window for g in self._generations()]
        ends = [w.ended for w in windows if w.ended is not None]
        return max(ends) - min(w.submitted for w in windows) if ends else 0.0

    @property
    def tok_s(self) -> float | None:
        """All tokens by the time that all requests took together; None without any."""
        return self.tokens / self.seconds if self.tokens and self.seconds else None

    @property
    def totals(self) -> str:
        """One line: requests, tokens, seconds, tokens a second."""
        stopped = len(self) - self.complete - len(self.errors)
        ends = ((self.complete, "complete"), (stopped, "cut short"), (len(self.errors), "failed"))
        said = ", ".join(f"{n} {what}" for n, what in ends if n) or "none"
        requests = "1 request" if len(self) == 1 else f"{len(self)} requests"
        speed = "" if self.tok_s is None else f" ({self.tok_s:.1f} tok/s together)"
        return f"{requests}: {said}, {self.tokens} tokens in {self.seconds:.1f} s{speed}"

    @property
    def headers(self) -> list[str]:
        """A line for each entry: its prompt's first words, and how it ended."""
        pairs = zip(self._titles, self, strict=True)
        return [f"[{n}] {name} ({ending(outcome)})" for n, (name, outcome) in enumerate(pairs, 1)]

    @property
    def page(self) -> str:
        """All answers in order, each under its header."""
        pairs = zip(self.headers, self.texts, strict=True)
        return "\n\n".join(f"{header}\n{text}".rstrip() for header, text in pairs)

    @property
    def markdown(self) -> str:
        """The same page as Markdown, with the answers as they are."""
        pairs = zip(self.headers, self.texts, strict=True)
        return "\n\n".join(f"**{_literal(header)}**\n\n{text}".rstrip() for header, text in pairs)

    def __repr__(self) -> str:
        return f"<{self.totals}>"

    def _repr_html_(self) -> str:
        rows = "".join(f"<li>{escape(header)}</li>" for header in self.headers)
        return (
            f"<details><summary>{escape(self.totals)}</summary>"
            f'<ul style="list-style:none">{rows}</ul></details>'
        )

    def _generations(self) -> Iterator[Generation]:
        for outcome in self:
            found = outcome.generation if isinstance(outcome, RequestFailed) else outcome
            if isinstance(found, Generation):
                yield found


def text_of(outcome: Outcome) -> str:
    """What an entry says; what a failed one had said."""
    found = outcome.generation if isinstance(outcome, RequestFailed) else outcome
    return found.text if isinstance(found, Generation) else ""


def ending(outcome: Outcome) -> str:
    """How an entry ended, in a few words."""
    if isinstance(outcome, MTPLXError):
        return f"failed: {' '.join(str(outcome).split())}"
    stats = outcome.stats
    tokens = "1 token" if stats.completion_tokens == 1 else f"{stats.completion_tokens} tokens"
    speed = [] if stats.decode_tok_s is None else [f"{stats.decode_tok_s:.1f} tok/s"]
    return ", ".join([tokens, *speed, str(outcome.finish_reason)])


def _literal(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|~$" else c for c in text)
