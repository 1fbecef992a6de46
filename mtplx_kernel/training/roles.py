"""The texts that a chat template puts around messages: what a conversation is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

USER, ANSWER, AGAIN = "qzUSERqz", "qzANSWERqz", "qzAGAINqz"
SYSTEM = "qzSYSTEMqz"


@dataclass(frozen=True, slots=True)
class Switch:
    """The ids between two messages.

    Attributes
    ----------
    ids
        From the end of the one to the start of the other.
    skip
        How many of them the writer of the message makes: the mark of the message's end.
    """

    ids: tuple[int, ...]
    skip: int


@dataclass(frozen=True, slots=True)
class Roles:
    """How conversations with a model are written.

    Attributes
    ----------
    opening, system
        The text before the first user message, without and with a system message, which stands
        where SYSTEM is; `system` is None where the model takes none.
    to_answer, to_user
        Between a user message and its answer, and between an answer and the next user message.
    ends
        Ids that end a message.
    """

    opening: str
    system: str | None
    to_answer: Switch
    to_user: Switch
    ends: tuple[int, ...]


def find_roles(tokenizer: Any, end_ids: frozenset[int]) -> Roles | None:
    """Read the chat template by rendering it; None for a model without a usable one."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    user = {"role": "user", "content": USER}
    turns = [user, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": AGAIN}]
    asked = _render(tokenizer, [user], True)
    whole = _render(tokenizer, turns, False)
    if asked is None or whole is None or USER not in asked:
        return None
    if ANSWER not in whole or AGAIN not in whole:
        return None
    opening, to_answer = asked.split(USER, 1)
    to_user = whole.split(ANSWER, 1)[1].split(AGAIN, 1)[0]
    system = _render(tokenizer, [{"role": "system", "content": SYSTEM}, user], True)
    if system is not None:
        system = system.split(USER, 1)[0] if SYSTEM in system.split(USER, 1)[0] else None
    special = set(getattr(tokenizer, "all_special_ids", ())) | set(end_ids)
    switches = [_switch(tokenizer, text, special) for text in (to_answer, to_user)]
    marks = {s.ids[s.skip - 1] for s in switches if s.skip}
    return Roles(opening, system, switches[0], switches[1], tuple(sorted(marks | end_ids)))


def encode(tokenizer: Any, text: str) -> list[int]:
    """Ids of a rendered text, whose special tokens are written out."""
    return [int(i) for i in tokenizer.encode(text, add_special_tokens=False)]


def _switch(tokenizer: Any, text: str, special: set[int]) -> Switch:
    ids = encode(tokenizer, text)
    first = next((n for n, i in enumerate(ids) if i in special), None)
    # A mark that comes late belongs to the next message, not to the end of this one.
    skip = first + 1 if first is not None and first <= 1 else 0
    return Switch(tuple(ids), skip)


def _render(tokenizer: Any, messages: list[dict[str, str]], ask: bool) -> str | None:
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)
    except Exception:  # templates raise what they like; one that refuses is not usable
        return None
    return text if isinstance(text, str) else None
