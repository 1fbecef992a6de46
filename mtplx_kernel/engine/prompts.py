"""From what a user writes to token ids: text, chat messages or ids, checked before any work."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from mtplx_kernel.errors import InvalidRequest, PromptTooLong
from mtplx_kernel.models.load import ModelFacts

Message = Mapping[str, Any]
Prompt = str | Sequence[Message] | Sequence[int]
CHARACTERS_A_TOKEN = 8
"""Of a text that has more for each token that the model takes, the beginning is tried first."""
CUT = 16
"""The most tokens that a beginning may have more than the text, because it ends within a word."""
ROLES = ("system", "user", "assistant", "tool")


class PromptEncoder:
    """Encodes prompts for one model. Safe to use from any thread.

    Parameters
    ----------
    tokenizer
        The model's, as mlx-lm wraps it.
    facts
        The model's limits.
    """

    def __init__(self, tokenizer: Any, facts: ModelFacts) -> None:
        self._tokenizer = tokenizer
        self._facts = facts
        self._lock = threading.Lock()

    def encode(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a prompt.

        Parameters
        ----------
        prompt
            Text, messages with `role` and `content`, or ids. Text becomes one user message where
            the model has a chat template, unless `raw`.
        system
            A system message to put first.
        tools
            Functions, as OpenAI describes them, that the chat template is to tell of.

        Raises
        ------
        InvalidRequest
            If the prompt is empty, too long (`PromptTooLong`), of no known shape, or refused by the
            chat template.
        """
        with self._lock:
            ids = self._ids(prompt, raw, system, tools)
        limit, size = self._facts.context_length - 1, self._facts.vocabulary
        if not ids:
            raise InvalidRequest("the prompt is empty: give at least one token")
        wrong = next((i for i in ids if not 0 <= i < size), None)
        if wrong is not None:
            raise InvalidRequest(f"token id {wrong} is not in the vocabulary: 0 to {size - 1}")
        if len(ids) > limit:
            raise self._too_long(str(len(ids)))
        return tuple(ids)

    def _ids(
        self,
        prompt: Prompt,
        raw: bool,
        system: str | None,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> list[int]:
        if tools is not None:
            self._check_tools(prompt, raw, tools)
        if isinstance(prompt, str):
            return self._from_text(prompt, raw, system, tools)
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
            raise _shape(type(prompt).__name__)
        if not prompt:
            return []
        if all(isinstance(item, Mapping) for item in prompt):
            if raw:
                raise InvalidRequest("raw takes text or ids, not chat messages")
            return self._from_messages(list(prompt), system, tools)  # type: ignore[arg-type]
        if system is not None:
            raise InvalidRequest("a system message cannot be put before token ids")
        return self._checked_ids(prompt)

    def _check_tools(self, prompt: Prompt, raw: bool, tools: Any) -> None:
        if not isinstance(tools, list | tuple) or not all(isinstance(t, Mapping) for t in tools):
            raise InvalidRequest(f"tools must be a list of functions, not {tools!r:.80}")
        ids = not isinstance(prompt, str) and all(isinstance(item, int) for item in prompt)
        if raw or ids or not self._tokenizer.has_chat_template:
            raise InvalidRequest(
                "tools are told of by a chat template, so not with raw text or ids"
            )

    def _from_text(
        self,
        text: str,
        raw: bool,
        system: str | None,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> list[int]:
        if not raw and self._tokenizer.has_chat_template:
            if not text.strip():
                return []
            return self._from_messages([{"role": "user", "content": text}], system, tools)
        if not text:
            return []
        if system is not None:
            why = (
                "raw prompts take" if raw else f"{self._facts.name} has no chat template, so takes"
            )
            raise InvalidRequest(f"{why} no system message: write it into the prompt")
        _check_text(text)
        bos = self._tokenizer.bos_token
        special = bos is None or not text.startswith(bos)
        return self._encoded(text, special=special)

    def _encoded(self, text: str, *, special: bool) -> list[int]:
        """Ids of a text. What is far too long is not read to its end, which can take a minute."""
        limit = self._facts.context_length - 1
        longest = CHARACTERS_A_TOKEN * limit
        if len(text) > longest:
            begun = self._tokenizer.encode(text[:longest], add_special_tokens=special)
            if len(begun) > limit + CUT:
                raise self._too_long(f"more than {limit}")
        return list(self._tokenizer.encode(text, add_special_tokens=special))

    def _too_long(self, tokens: str) -> PromptTooLong:
        limit = self._facts.context_length - 1
        return PromptTooLong(
            f"the prompt has {tokens} tokens; {self._facts.name} takes at most {limit} "
            "(its context, less one token to generate): shorten it"
        )

    def _from_messages(
        self,
        messages: list[Message],
        system: str | None,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> list[int]:
        if not self._tokenizer.has_chat_template:
            raise InvalidRequest(
                f"{self._facts.name} has no chat template: give the prompt as text"
            )
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        for message in messages:
            _check_message(message)
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(m) for m in messages],
                add_generation_prompt=True,
                tokenize=False,
                **({"tools": [dict(tool) for tool in tools]} if tools else {}),
            )
        except Exception as error:  # templates are programs and raise what they like
            cause = " ".join(str(error).split())
            raise InvalidRequest(f"the model's chat template refuses: {cause}") from error
        return self._encoded(text, special=False)

    def _checked_ids(self, ids: Sequence[Any]) -> list[int]:
        for item in ids:
            if isinstance(item, bool) or not isinstance(item, int):
                raise _shape(f"a list that holds {type(item).__name__}")
        return list(ids)


def _check_message(message: Message) -> None:
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise InvalidRequest(f"a message's role must be one of {', '.join(ROLES)}, not {role!r}")
    if not isinstance(content, str):
        raise InvalidRequest(f"a message's content must be text, not {type(content).__name__}")
    _check_text(content)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the prompt holds half a character, {text[error.start]!r}, at position {error.start}: "
            "text must be valid Unicode"
        ) from error


def _shape(found: str) -> InvalidRequest:
    return InvalidRequest(
        "a prompt is text, a list of messages with role and content, or a list of token ids, "
        f"not {found}"
    )
