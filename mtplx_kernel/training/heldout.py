"""The prompts that heads are judged on: no training text holds them."""

from __future__ import annotations

from dataclasses import dataclass

DOMAINS = ("chat", "code", "facts", "stories", "rewriting", "lists")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One user message, its kind, and a name to cite it by."""

    name: str
    domain: str
    text: str


_PUMP = """\
The pump in the cellar starts by itself as soon as the water is higher than the red mark. Please \
do not unplug it, even if it hums. Should the lamp on the lid blink twice, call the caretaker, \
whose number hangs next to the meter."""

_MINUTES = """\
we talked abt the roof again. gutters leak on the north side, Halvorsen says 2 weeks to fix, maybe \
3 if it rains. money comes from the reserve, nobody against it. bins: blue one is always full, \
somebody ask the city for a second one pls. next meeting same time same room"""

_CLASS = """\
class Jar:
    def __init__(self):
        self.coins = []

    def drop(self, coin):
        self.coins.append(coin)

    def worth(self):
        w = 0
        for c in self.coins:
            w = w + c
        return w"""

_LOOP = """\
let seen = {};
let firstRepeat = null;
for (const ch of "swordfish kettle") {
  if (seen[ch] && firstRepeat === null) { firstRepeat = ch; }
  seen[ch] = true;
}"""


def _of(domain: str, **texts: str) -> tuple[HeldOut, ...]:
    return tuple(HeldOut(f"{domain}-{name}", domain, text) for name, text in texts.items())


HELD_OUT: tuple[HeldOut, ...] = (
    *_of(
        "chat",
        roommate="My flatmate leaves dirty pans in the sink for days. How do I bring it up without "
        "starting a fight?",
        retire="Dad retires next week after forty years as a bus mechanic. What could we "
        "do for him?",
        phone="I pick up my phone every five minutes at my desk. Talk me out of it.",
        move="We may move from a big city to a village of nine hundred people. What will we miss?",
        dog="Our puppy chews chair legs whenever we leave the house. Any ideas?",
        toast="I must give a toast at my sister's wedding and I have never spoken in public.",
        cold="It is minus fifteen outside and my daughter wants to bike to school. Should "
        "I let her?",
        violin="Is forty-six too old to take up the violin?",
        weekend="Rain all weekend, two kids, no car. Entertain us.",
    ),
    *_of(
        "code",
        roman="Please write a Python function to turn Roman numerals into integers, and walk me "
        "through it.",
        debounce="Can you write a debounce helper in JavaScript? Show how I would attach it to a "
        "search box.",
        matrix="In C, how would I transpose a square matrix in place?",
        anagram="I need a function that groups anagrams together. Python, please, with a "
        "docstring.",
        bash="Give me a bash loop that renames every .jpeg here to .jpg.",
        sqljoin="There are two tables, orders and refunds. Show me the SQL for orders "
        "that were never "
        "refunded.",
        retry="Write a Python decorator that retries a call three times and waits longer "
        "each time.",
        tree="Implement a binary search tree with insert and in-order traversal in Java.",
        fizz="Explain what a compiler does differently from an interpreter, with a tiny "
        "program as an "
        "illustration.",
    ),
    *_of(
        "facts",
        salt="Why does salt melt ice on roads, and when does it stop working?",
        honey="How do bees turn nectar into honey?",
        amazon="Which countries does the Amazon flow through, and where does it end?",
        curie="What did Marie Curie get her two Nobel prizes for?",
        blood="Walk me through how blood moves through the heart.",
        paper="How was paper made before there were machines for it?",
        mars="Could a person stand on Mars without a suit? What would kill them first?",
        leap="Where do leap years come from, and why is there an exception for centuries?",
        cheese="What makes the holes in Swiss cheese?",
    ),
    *_of(
        "stories",
        clockmaker="Tell me a tale about a clockmaker whose clocks all run backwards.",
        postman="A postman delivers a letter forty years late. Write that story.",
        robot="Write about a cleaning robot that starts to collect lost earrings.",
        twins="Two twins swap places at summer camp and one of them decides not to swap "
        "back. Story "
        "please.",
        river="Make up a myth in which a river falls in love with a bridge.",
        heist="Give me the opening scene of a heist in which the thieves only want one spoon.",
        ghost="I would like a ghost story that turns out to be funny, told by the ghost.",
        radio="Someone hears her own voice on an old radio. Take it from there.",
        poem="Compose four rhyming stanzas about the last tram of the night.",
    ),
    *_of(
        "rewriting",
        pump=f"Turn this into numbered rules for guests:\n\n{_PUMP}",
        pumpformal=f"Rephrase the note below for a landlord who likes formal letters.\n\n{_PUMP}",
        minutes=f"Please turn my messy notes into proper minutes.\n\n{_MINUTES}",
        minutesfix=f"Only fix spelling and punctuation here, change nothing else:\n\n{_MINUTES}",
        jar="Refactor this so that worth() uses sum(), then print the full class "
        f"again:\n\n{_CLASS}",
        jartypes="Give the same class with type annotations "
        f"everywhere.\n\n```python\n{_CLASS}\n```",
        loop=f"Convert this JavaScript into Python without changing what it does.\n\n{_LOOP}",
        present="Put into present tense: The ferry left the quay at dawn, gulls circled above the "
        "deck, and the cook burned the porridge while he watched the cliffs fade.",
        plain="Say this in plain words: Pursuant to clause nine, the lessee shall refrain from "
        "affixing any object to the exterior masonry absent prior written consent.",
    ),
    *_of(
        "lists",
        camp="Which twelve things do first-time campers forget most often?",
        verbs="Write down twenty irregular English verbs with all three forms.",
        planets="All planets in order from the sun, with one odd detail for each.",
        interview="Draft ten questions a landlord could ask a future tenant.",
        breakfast="Seven breakfasts for seven days, none of them sweet, one line each.",
        table="Tabulate five bridges: name, where it stands, year of opening, length.",
        json="Return a JSON array with six imaginary library books: title, author, year, shelf.",
        steps="What are the steps to change a bicycle tube at the roadside?",
        pros="Working from home four days a week: lay out what speaks for it and against "
        "it in bullets.",
    ),
)
