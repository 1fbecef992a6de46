"""The requests of the load: good ones with a seed each, and wrong ones with what is to be said."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PATHS = (CHAT, TEXT, TEXT, CHAT, "/v1/hyper/chat/completions", "/v1/hyper/completions")
"""One in three goes to a route of hyper, where requests run one at a time."""
WORDS = ("a", "river", "runs", "through", "the", "old", "town", "and", "nobody", "knows", "where")
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
LONGEST = 60
"""Tokens of the longest answers: enough to be left in the middle, short enough for many."""

ENDLESS = 19_000
"""Tokens of answers that nobody waits for."""
CONTEXT = 20_000
"""What the model must have room for."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A request: where it goes, and its body."""

    path: str
    body: dict[str, Any]

    def streamed(self) -> dict[str, Any]:
        """The body that asks for a stream, with the usage at its end."""
        return {**self.body, **STREAM}

    def endless(self) -> dict[str, Any]:
        """The same for answers that take minutes: for clients that will not hear the end.

        Where the endpoint does not notice that they have gone, it is found busy at the end.
        """
        body = {name: value for name, value in self.body.items() if name != "stop"}
        return {**body, "max_tokens": ENDLESS, "n": 2, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Wrong:
    """A request that must be refused, with the status and the parameter that is blamed."""

    path: str
    body: dict[str, Any]
    status: int
    param: str | None


def wishes(model: str, count: int, seed: int) -> list[Wish]:
    """Requests that have one answer each, however often and beside whatever they are asked.

    Parameters
    ----------
    model
        The name that is served.
    """
    drawn = random.Random(seed)
    return [_wish(model, PATHS[number % len(PATHS)], drawn) for number in range(count)]


def _wish(model: str, path: str, drawn: random.Random) -> Wish:
    prompt = " ".join(drawn.choices(WORDS, k=drawn.randint(1, 12)))
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": drawn.randint(1, LONGEST),
        "temperature": drawn.choice((0, 0.8, 1)),
        "seed": drawn.randrange(2**32),
        "ignore_eos": drawn.random() < 0.7,
        "n": drawn.choice((1, 1, 1, 2)),
    }
    if path.endswith("chat/completions"):
        messages = [{"role": "user", "content": prompt}]
        body |= {"messages": messages, "logprobs": True, "top_logprobs": drawn.randrange(3)}
    else:
        body |= {"prompt": prompt, "logprobs": drawn.randrange(3)}
    if drawn.random() < 0.3:
        body["generation_mode"] = drawn.choice(("ar", "mtp"))
    if drawn.random() < 0.2:
        body["stop"] = [drawn.choice("aeiou"), "\n\n"]
    return Wish(path, body)


def wrong_ones(model: str) -> list[Wrong]:
    """Requests that must be refused."""
    good = {"model": model, "prompt": "Hello", "max_tokens": 4}
    chat = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    return [
        Wrong(TEXT, {**good, "temperature": 9}, 400, "temperature"),
        Wrong(TEXT, {**good, "n": 99}, 400, "n"),
        Wrong(TEXT, {**good, "prompt": ""}, 400, "prompt"),
        Wrong(TEXT, {**good, "prompt": "long " * 9000}, 400, "prompt"),
        Wrong(TEXT, {**good, "prompt": [99_999_999]}, 400, "prompt"),
        Wrong(TEXT, {**good, "surprise": True}, 400, "surprise"),
        Wrong(TEXT, {**good, "model": "another"}, 404, "model"),
        Wrong(CHAT, {**chat, "messages": []}, 400, "messages"),
        Wrong(CHAT, {**chat, "messages": [{"role": "user"}]}, 400, "messages[0].content"),
        Wrong(CHAT, {**chat, "top_logprobs": 3}, 400, "top_logprobs"),
        Wrong(CHAT, {**chat, "logit_bias": {"1": 101}}, 400, "logit_bias"),
        Wrong("/v1/hyper/completions", {**good, "priority": 2}, 400, "priority"),
        Wrong("/v1/nothing", good, 404, None),
    ]
