"""What single values of a body may be, where a type alone does not say it in a line."""

from __future__ import annotations

import re
from typing import Any

from mtplx_kernel.server.errors import Complaint

MOST_PROMPTS = 32
MOST_STOPS = 4
MOST_BIASES = 300
ONLY_TEXT = "only text is offered"

_ID = re.compile(r"0|[1-9][0-9]{0,8}")
_NAME = re.compile(r"[^\s<|\\/>]{1,64}")
_PROMPT = "prompt must be text, token ids, or a list of several of either, and none may be empty"


def check_stop(value: Any) -> Any:
    """A text or a few."""
    stops = [value] if isinstance(value, str) else value
    fine = isinstance(stops, list) and all(isinstance(stop, str) and stop for stop in stops)
    if value is not None and not (fine and 1 <= len(stops) <= MOST_STOPS):
        raise Complaint(f"stop must be a text, or 1 to {MOST_STOPS} texts, none of them empty")
    return value


def check_bias(value: Any) -> Any:
    """Token ids, as JSON writes an object's names, with a number each."""
    if value is None:
        return value
    if not isinstance(value, dict):
        raise Complaint("logit_bias must be an object of token ids with a number each")
    for key, bias in value.items():
        if not _ID.fullmatch(key):
            raise Complaint(f"logit_bias must name token ids, such as '50256', not {key[:20]!r}")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise Complaint(f"logit_bias of {key} must be a number from -100 to 100")
    if len(value) > MOST_BIASES:
        raise Complaint(f"logit_bias must have at most {MOST_BIASES} entries, not {len(value)}")
    return value


def check_content(value: Any) -> Any:
    """Text, or parts of which each is text; null where a message needs none."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise Complaint("a message's content must be text, or a list of text parts")
    for at, part in enumerate(value):
        if not isinstance(part, dict):
            raise Complaint(f"part {at} of the content must be an object with type and text")
        kind = part.get("type")
        if kind != "text":
            raise Complaint(
                f"part {at} of the content has the type {str(kind)[:40]!r}: {ONLY_TEXT}",
                "unsupported_content",
            )
        unknown = sorted(set(part) - {"type", "text"})
        if unknown:
            raise Complaint(
                f"part {at} of the content has an unknown field {unknown[0]!r}", "unknown_parameter"
            )
        if not isinstance(part.get("text"), str):
            raise Complaint(f"part {at} of the content must have a text")
    return value


def check_prompt(value: Any) -> Any:
    """Text or token ids, or a list of several of the one or the other."""
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, list) or not value:
        raise Complaint(_PROMPT)
    if all(map(_is_id, value)):
        return value
    if len(value) > MOST_PROMPTS:
        raise Complaint(f"prompt must be at most {MOST_PROMPTS} prompts, not {len(value)}")
    texts = all(isinstance(item, str) and item for item in value)
    ids = all(isinstance(item, list) and item and all(map(_is_id, item)) for item in value)
    if not texts and not ids:
        raise Complaint(_PROMPT)
    return value


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_name(value: Any) -> Any:
    """A participant's name."""
    if value is not None and not (isinstance(value, str) and _NAME.fullmatch(value)):
        raise Complaint("name must be 1 to 64 characters without spaces and without < | \\ / >")
    return value
