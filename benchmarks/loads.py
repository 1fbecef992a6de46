"""What the users of a concurrency benchmark ask: chats, questions about one text, many samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from benchmarks.arrivals import Ask, Plan, burst, closed, lengths, poisson
from benchmarks.measure import BenchmarkFailed, EncodedPrompt
from mtplx_kernel.training.heldout import DOMAINS, HELD_OUT

Encode = Callable[[str], tuple[int, ...]]
LONG = 4
"""Long answers against short ones."""
UTILISATION = 0.7
"""Of the requests a second that mlx-lm can serve, how many come where they come by themselves."""
SAMPLE_TEMPERATURE = 0.8

GARDEN = """\
The Harrow Lane garden has forty plots. A plot is let for one year, from the first of March, and \
may be renewed if it was kept in use. The rent is thirty-two euros a year, or twenty for members \
under twenty-five, and is due by the end of February. Who pays later than the tenth of March \
loses the plot to the first name on the waiting list.

The gate is open from seven in the morning until nine in the evening, in winter until six. Every \
member has a key; a lost key costs fifteen euros. The tool shed is locked with a number, which \
is changed in April and October and is sent by letter. Tools must be cleaned and hung up on the \
day they were taken. The mower may be used by members who have been shown how, and never before \
nine or on Sundays.

Water comes from the well by the east wall. From June to August cans only, no hoses, between ten \
and five. The two barrels by the gate are for the herb beds, which belong to everybody: anyone \
may cut herbs there, but not pull up plants. Compost goes into the left bin until it is full, \
then into the right one; meat, bread and cooked food attract rats and must not go into either.

Each member gives six hours of common work a year, at the dates on the notice board, or pays ten \
euros for each hour missed. Dogs are welcome on a lead. Fires are not allowed. Bees are kept by \
Mrs Okafor at the north end: please do not walk in front of the hives, and tell her before you \
spray anything. Complaints go to the committee, which meets on the first Tuesday of the month."""

QUESTIONS = (
    "What does a plot cost, and for whom is it cheaper?",
    "Quote the sentence about the mower word for word, then explain it.",
    "When is the gate open?",
    "List every rule about water, one a line.",
    "What happens if I pay my rent on the twelfth of March?",
    "Rewrite the paragraph about common work, dogs and bees as a list.",
    "May I light a fire or bring my dog?",
    "Repeat the paragraph about the gate, the keys and the tool shed exactly.",
    "What may go into the compost, and into which bin?",
    "Write a short welcome letter to a new member with the five most important rules.",
    "Who keeps bees, and what should I do before I spray?",
    "List all amounts of money in the text and what each is for.",
    "How is the number of the tool shed made known?",
    "Repeat the paragraph about the well and the barrels exactly.",
    "How many hours of common work are asked, and what if I miss two?",
    "Summarise the rules in four sentences.",
)

SAMPLED = (
    "Write a Python class Account with deposit, withdraw and balance methods, a docstring on each, "
    "and show how it is used."
)


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of work.

    Attributes
    ----------
    shared
        Whether all prompts begin with one long text; otherwise they are short chats.
    arrivals
        "closed" (each client asks again when it was answered), "poisson" or "burst".
    longer
        How many times `--max-tokens` its longest answers are.
    """

    name: str
    shared: bool = False
    arrivals: str = "closed"
    longer: int = 1

    @property
    def open(self) -> bool:
        """Whether requests come by themselves, answered or not."""
        return self.arrivals != "closed"

    def asks(self, encode: Encode, count: int, max_tokens: int, seed: int) -> list[Ask]:
        """The first `count` requests, with answers' lengths drawn from the seed."""
        prompts = about_the_garden(encode) if self.shared else chats(encode)
        sizes = lengths(count, max_tokens * self.longer, seed)
        return [Ask(prompts[n % len(prompts)], size) for n, size in enumerate(sizes)]

    def plan(self, asks: Sequence[Ask], clients: int, rate: float, seed: int) -> Plan:
        """When they come.

        Parameters
        ----------
        rate
            Requests a second, where they come by themselves.
        """
        if self.arrivals == "closed":
            return closed(asks, clients)
        if self.arrivals == "poisson":
            return poisson(asks, rate, seed)
        return burst(asks, clients, rate)


LOADS = {
    load.name: load
    for load in (
        Load("chat"),
        Load("chat-long", longer=LONG),
        Load("shared", shared=True),
        Load("shared-long", shared=True, longer=LONG),
        Load("poisson", arrivals="poisson"),
        Load("burst", arrivals="burst"),
    )
}


def chats(encode: Encode) -> list[EncodedPrompt]:
    """The held-out prompts, a domain after the other so that any first few mix them."""
    by_domain = [[p for p in HELD_OUT if p.domain == domain] for domain in DOMAINS]
    mixed = chain.from_iterable(zip_longest(*by_domain))
    return [EncodedPrompt(p.name, p.domain, encode(p.text)) for p in mixed if p is not None]


def about_the_garden(encode: Encode) -> list[EncodedPrompt]:
    """One long text, each time with another question."""
    return [
        EncodedPrompt(f"garden-{n}", "shared", encode(f"{GARDEN}\n\n{question}"))
        for n, question in enumerate(QUESTIONS, start=1)
    ]


def many_samples(encode: Encode, count: int, max_tokens: int) -> list[Ask]:
    """One prompt with several seeds."""
    prompt = EncodedPrompt("samples", "code", encode(SAMPLED))
    return [Ask(prompt, max_tokens, SAMPLE_TEMPERATURE, seed) for seed in range(count)]


def many_questions(encode: Encode, count: int, max_tokens: int) -> list[Ask]:
    """Questions about one text whose answers repeat it."""
    prompts = about_the_garden(encode)
    return [Ask(prompts[n % len(prompts)], max_tokens) for n in range(count)]


def long_prompts(encode: Encode, tokens: int, count: int) -> list[EncodedPrompt]:
    """Prompts of exactly so many tokens; no two begin alike, so that no cache knows a part of one.

    Raises
    ------
    BenchmarkFailed
        If there are not so many.
    """
    ids = encode(GARDEN)
    starts = [n for n, token in enumerate(ids) if token not in ids[:n]]
    if count > len(starts):
        raise BenchmarkFailed(f"there are {len(starts)} different long prompts, not {count}")
    endless = ids * (tokens // len(ids) + 2)
    return [
        EncodedPrompt(f"long-{n}", "shared", endless[start : start + tokens])
        for n, start in enumerate(starts[:count], start=1)
    ]
