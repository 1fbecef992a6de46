"""A row: one request inside the decode step, with its ids and where its caches stand."""

from __future__ import annotations

from dataclasses import dataclass, field

from mtplx_kernel.decoding.constraint import Constraint
from mtplx_kernel.decoding.logprob import TokenLogprob
from mtplx_kernel.decoding.params import MAX_DEPTH, GenerationMode, SamplingParams
from mtplx_kernel.decoding.text import TextStream


@dataclass(slots=True)
class Row:
    """The state of one request between cycles.

    Attributes
    ----------
    ids
        Prompt and output.
    prompt_length
        How many of them are the prompt.
    fed_length
        How many of them are fed by prefill, but for the last: the prompt, or all that were known
        when the caches were lost.
    committed
        How many the caches hold; the rest is pending.
    context_length
        Most ids the model can take.
    draft_params
        How a head's drafts are drawn; None as the tokens are. Bias and penalties are the tokens'.
    constraint
        What the output may be, and where it stands in that; None leaves it free.
    omit_bonus
        Whether the token after drafts that were all right is left to the next cycle.
    pool
        Names the rows whose text may be drafted from; None for its own alone.
    slot
        Where in the caches the row lives; None before it is admitted and after its release.
    logprobs
        What was reported of each id of the output, where that was asked for.
    draft_error
        The last failure of a drafter.
    drafting
        Whether drafts may be made: not in mode ar, at depth 0, or after a head has failed.
    """

    request_id: str
    ids: list[int]
    params: SamplingParams
    seed: int
    mode: GenerationMode
    end_ids: frozenset[int]
    context_length: int
    text: TextStream
    draft_params: SamplingParams | None = None
    constraint: Constraint | None = None
    omit_bonus: bool = False
    pool: str | None = None
    slot: int | None = None
    committed: int = 0
    prompt_length: int = field(init=False)
    fed_length: int = field(init=False)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    draft_error: str | None = None
    drafting: bool = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_length = self.fed_length = len(self.ids)
        self.drafting = self.mode is not GenerationMode.AR and self.params.depth != 0

    @property
    def place(self) -> int:
        """The slot of a row that has one."""
        assert self.slot is not None, f"{self.request_id} is not admitted"
        return self.slot

    @property
    def drawn(self) -> SamplingParams:
        """How a head's drafts are drawn."""
        return self.draft_params or self.params

    @property
    def conditioned(self) -> bool:
        """Whether the host must know a token before it can say what follows it."""
        return self.params.penalised or self.constraint is not None

    def rewind(self) -> None:
        """Begin anew with the ids that are known: the caches were lost."""
        self.committed, self.fed_length = 0, len(self.ids)

    @property
    def pending(self) -> list[int]:
        """Known ids that the caches do not hold yet; at least one."""
        return self.ids[self.committed :]

    @property
    def output(self) -> list[int]:
        """The ids produced so far."""
        return self.ids[self.prompt_length :]

    @property
    def prefill_left(self) -> int:
        """Tokens to feed before the first decode cycle, which takes the last one."""
        return max(0, self.fed_length - 1 - self.committed)

    @property
    def room(self) -> int:
        """How many more tokens the row may produce."""
        produced = len(self.ids) - self.prompt_length
        return min(self.params.max_tokens - produced, self.context_length - len(self.ids))

    @property
    def depth(self) -> int:
        """Most drafts of the next cycle: one of its tokens needs no draft.

        0 while many tokens are pending, as they are on recurrent models after partial accepts:
        a cycle without drafts commits them all.
        """
        if not self.drafting or len(self.ids) - self.committed > MAX_DEPTH:
            return 0
        wanted = MAX_DEPTH if self.params.depth is None else self.params.depth
        return max(0, min(wanted, self.room - 1))
