"""Loaded by schemathesis: what its requests are changed by, and which refusals are due.

A description of fields has no word for rules between fields, nor for what the model is; those
rules are listed here, and a well-formed request that is refused for another reason is a failure.
"""

from __future__ import annotations

import os
import re
from typing import Any

import schemathesis

MODEL = os.environ["ENDPOINT_MODEL"]
MOST_TOKENS = 8
LONGEST_NAME = 4096
EVENTS = "text/event-stream"
LENGTHS = ("max_tokens", "max_completion_tokens")
RULES = {
    "stream_options": "only where stream is true",
    "top_logprobs": "only where logprobs is true",
    "max_tokens": "not beside max_completion_tokens, and no more than the model's context",
    "max_completion_tokens": "no more than the model's context",
    "best_of": "as many as n",
    "logprobs": "not with echo",
    "logit_bias": "ids of the model's vocabulary, and at most 300",
    "priority": "not on the routes of hyper",
    "prompt": "ids of the model's vocabulary, no longer than its context",
    "messages": "no longer than the model's context",
    "depth": "not in mode ar",
    "acceptance": "not in mode ar",
}
WITH_A_POINT = re.compile(r"should be a valid integer, not -?[0-9.e+]+$")
"""JSON Schema takes 2.0 for a whole number; the endpoint does not."""


@schemathesis.hook
def before_load_schema(context: schemathesis.HookContext, raw_schema: dict[str, Any]) -> None:
    """Take the schemas of streams out: they are of an event's data, as OpenAI writes them.

    Schemathesis takes them for schemas of the event around it.
    """
    for routes in raw_schema["paths"].values():
        for route in routes.values():
            for response in route["responses"].values():
                response.get("content", {}).get(EVENTS, {}).pop("schema", None)


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    """Ask the model that is served, for a few tokens; what is no model's name stays as it is."""
    name = body.get("model") if isinstance(body, dict) else None
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
        return body
    changed = {**body, "model": MODEL}
    given = [name for name in LENGTHS if isinstance(body.get(name), int)]
    changed |= {name: min(body[name], MOST_TOKENS) for name in given if body[name] is not True}
    if all(body.get(name) is None for name in LENGTHS):
        changed["max_tokens"] = MOST_TOKENS
    return changed


@schemathesis.check
def refused_by_a_rule_alone(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """What the description allows is refused only by a rule between fields, or for the model."""
    valid = case.meta is not None and case.meta.generation.mode.is_positive
    if not valid or response.status_code != 400:
        return
    error = response.json()["error"]
    if WITH_A_POINT.search(error["message"]):
        return
    name = (error["param"] or "").partition("[")[0].partition(".")[0]
    assert name in RULES, f"refused for {error['param']}: {error['message']}"
