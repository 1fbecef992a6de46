"""The questions that decoding is measured on: texts that repeat themselves, and texts that do not.

Drafts from a request's own text pay where the answer repeats the question (rewriting, code edits)
and not where it is new (stories, facts), so both kinds are here, ordered so that any first few mix
them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BenchmarkPrompt:
    """One user message and the kind of text that it asks for."""

    name: str
    domain: str
    text: str


_NOTICE = """\
The reading room is open from nine to five on weekdays and from ten to two on Saturdays. Bags and \
coats must be left in the lockers by the entrance. Pencils and laptops are welcome, but pens and \
drinks are not. Books from the open shelves may be taken to any desk. Books from the closed stacks \
are brought to the desk by the window, and must be handed back before the reading room closes."""

_FUNCTION = """\
def average_temperature(readings):
    total = 0
    count = 0
    for reading in readings:
        total = total + reading.temperature
        count = count + 1
    return total / count


def average_pressure(readings):
    total = 0
    count = 0
    for reading in readings:
        total = total + reading.pressure
        count = count + 1
    return total / count"""

_LETTER = """\
Dear Mrs Okafor, thank you for your order of twelve oak chairs. The chairs will leave our workshop \
on Monday and should reach your restaurant on Wednesday. Please check the chairs when they arrive \
and write to us within a week if a chair is damaged. We hope that your guests enjoy the chairs."""

PROMPTS: tuple[BenchmarkPrompt, ...] = (
    BenchmarkPrompt(
        "rewrite-notice",
        "rewriting",
        f"Copy this notice word for word, but write 'library' for 'reading room':\n\n{_NOTICE}",
    ),
    BenchmarkPrompt(
        "story-lighthouse",
        "stories",
        "Write a short story about a lighthouse keeper who finds a message that she wrote herself.",
    ),
    BenchmarkPrompt(
        "edit-guard",
        "code edit",
        "Rewrite this Python so that both functions return None for an empty list, and show all "
        f"of the code:\n\n```python\n{_FUNCTION}\n```",
    ),
    BenchmarkPrompt(
        "chat-garden",
        "chat",
        "I have a small balcony that gets sun in the morning only. What could I grow there, and "
        "how often would I have to water it?",
    ),
    BenchmarkPrompt(
        "facts-tides",
        "facts",
        "Explain why most coasts have two high tides a day, and why they are higher at new moon.",
    ),
    BenchmarkPrompt(
        "list-picnic",
        "lists",
        "List fifteen things to pack for a picnic, one a line, each with a few words on why.",
    ),
    BenchmarkPrompt(
        "code-stack",
        "code",
        "Write a Python class Stack with push, pop, peek, is_empty and size methods, with a "
        "docstring on each, and show how it is used.",
    ),
    BenchmarkPrompt(
        "rewrite-letter",
        "rewriting",
        f"Correct any mistakes in this letter and give the whole letter back:\n\n{_LETTER}",
    ),
    BenchmarkPrompt(
        "chat-interview",
        "chat",
        "I am nervous about a job interview tomorrow. How should I spend this evening?",
    ),
    BenchmarkPrompt(
        "list-table",
        "lists",
        "Make a table with the columns month, number of days and season for all twelve months of "
        "a year in the northern hemisphere.",
    ),
)
