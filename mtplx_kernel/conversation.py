"""What a prompt is made of: named variables put in, and the turns of ``--chat`` before it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mtplx_kernel.errors import InvalidRequest

Message = dict[str, str]
"""One message, with its `role` and its `content`."""


@dataclass(slots=True)
class Conversation:
    """The turns of ``--chat``; only a finished answer becomes one."""

    system: str | None = None
    turns: list[Message] = field(default_factory=list)

    def messages(self, prompt: str, system: str | None, default: str) -> list[Message]:
        """What the model is to answer: the system message, the turns so far, and `prompt`.

        `system` replaces the conversation's own; `default` is for a new conversation.
        """
        if system is None:
            system = self.system if self.turns else default
        first: list[Message] = [{"role": "system", "content": system}] if system else []
        return [*first, *self.turns, {"role": "user", "content": prompt}]

    def keep(self, messages: Sequence[Message], answer: str) -> None:
        """Remember the messages that were sent and the answer."""
        first = messages[0]
        self.system = first["content"] if first["role"] == "system" else None
        self.turns = [m for m in messages if m["role"] != "system"]
        self.turns.append({"role": "assistant", "content": answer})


def substitute(prompt: str, names: Sequence[str], variables: Mapping[str, Any]) -> str:
    """Put ``str(value)`` in place of ``{name}`` for the given names; all else stays.

    Raises
    ------
    InvalidRequest
        If a name is not defined, or does not occur in the prompt.
    """
    for name in names:
        if name not in variables:
            raise InvalidRequest(f"--vars {name}: no such variable; define it in a cell above")
        if f"{{{name}}}" not in prompt:
            raise InvalidRequest(f"--vars {name}: the prompt has no {{{name}}} to replace")
    if not names:
        return prompt
    pattern = "|".join(re.escape(name) for name in names)
    return re.sub(rf"\{{({pattern})\}}", lambda match: str(variables[match[1]]), prompt)
