"""What a request may ask of the decode step: sampling, stopping, mode. Plain data, no MLX."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self, TypeVar

from mtplx_kernel.errors import InvalidRequest

Choice = TypeVar("Choice", bound=StrEnum)

MAX_DEPTH = 16
MAX_SEED = 2**64 - 1
MAX_BIASED = 300
MAX_BIAS = 100.0
MAX_LOGPROBS = 20
MAX_GRAMMAR = 65_536
"""Characters of a schema or a grammar."""


class GenerationMode(StrEnum):
    """How a request turns forwards into tokens."""

    MTP = "mtp"
    """Draft and verify: several tokens a forward, the same tokens as `AR`."""
    AR = "ar"
    """Target only: one token a forward."""


class Acceptance(StrEnum):
    """How drafts are held against the target."""

    COUPLED = "coupled"
    """A draft is accepted iff it equals the target's own draw at that position."""
    REJECTION = "rejection"
    """A draft is accepted with the chance that keeps the target's law; ids depend on the mode."""
    BLOCK = "block"
    """As `REJECTION`, judging a cycle's drafts together: more of them are accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's sampling, stopping and drafting options.

    A schema or a grammar rules ids out first, then the bias is added. Then filters apply in
    mlx-lm's order: penalties, then top-p, min-p and top-k on the distribution at temperature 1,
    then the temperature.

    Parameters
    ----------
    max_tokens
        Most tokens to generate, at least 1.
    temperature
        0 is greedy.
    top_k
        Keep the k likeliest tokens; 0 keeps all.
    top_p
        Keep the smallest set of likeliest tokens with this much mass; 1 keeps all.
    min_p
        Keep tokens at least this fraction as likely as the likeliest; 0 keeps all.
    repetition_penalty
        Divides (or, where negative, multiplies) the logits of recent tokens; 1 is off.
    presence_penalty, frequency_penalty
        Subtracted from the logits of recent tokens, once or for each occurrence; 0 is off.
    penalty_context
        How many preceding tokens (of prompt and output) the penalties look at.
    logit_bias
        What is added to the logits of some ids, from -100 to 100, at most 300 of them. At usual
        temperatures -100 keeps an id out and 100 forces it. None is off.
    logprobs
        Report each token's log-probability, and those of this many of the likeliest ids in its
        place, 0 to 20. None is off.
    json_schema
        A JSON schema, as a mapping or as JSON text: the answer is JSON of that kind, unless
        `max_tokens` cuts it. It is kept as text.
    grammar
        The same for any text: a grammar in llguidance's form of Lark, whose rule is `start`.
    seed
        Under acceptance "coupled", noise at position t depends on (seed, t) alone. None draws a
        seed, which the stats report.
    stop
        Strings that end the text; they are not part of it.
    stop_token_ids
        Ids that end the text, beside the model's own end tokens.
    ignore_eos
        Go on past the model's own end tokens (for measurements).
    mode
        None takes the engine's default.
    depth
        Drafts a cycle in mode mtp, 0 to 16; None lets the engine choose.
    acceptance
        How drafts are verified.

    Raises
    ------
    InvalidRequest
        At construction, if a value is of the wrong type or out of range.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_context: int = 20
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    logprobs: int | None = None
    json_schema: str | None = None
    grammar: str | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    mode: GenerationMode | None = None
    depth: int | None = None
    acceptance: Acceptance = Acceptance.COUPLED

    def __post_init__(self) -> None:
        _whole("max_tokens", self.max_tokens, 1, None)
        _number("temperature", self.temperature, 0.0, 100.0)
        _whole("top_k", self.top_k, 0, None)
        _number("top_p", self.top_p, 0.0, 1.0, above=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above=True)
        _number("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _number("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        _whole("penalty_context", self.penalty_context, 1, None)
        if self.logit_bias is not None:
            self._set("logit_bias", _bias(self.logit_bias) or None)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.seed is not None:
            _whole("seed", self.seed, 0, MAX_SEED)
        if self.depth is not None:
            _whole("depth", self.depth, 0, MAX_DEPTH)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequest(f"ignore_eos must be True or False, not {self.ignore_eos!r}")
        if self.json_schema is not None:
            self._set("json_schema", _schema(self.json_schema))
        if self.grammar is not None:
            self._set("grammar", _grammar(self.grammar))
        if self.json_schema is not None and self.grammar is not None:
            raise InvalidRequest("json_schema and grammar cannot both be given")
        if self.constrained and self.ignore_eos:
            raise InvalidRequest("ignore_eos is refused with json_schema and grammar: they end")
        self._set("stop", _strings(self.stop))
        self._set("stop_token_ids", _ids(self.stop_token_ids))
        self._set("acceptance", _choice("acceptance", self.acceptance, Acceptance))
        if self.mode is not None:
            self._set("mode", _choice("mode", self.mode, GenerationMode))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Whether the target token is the argmax."""
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether logits depend on the preceding tokens beyond the model itself."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed, by the bias or the penalties, before anything is drawn."""
        return self.logit_bias is not None or self.penalised

    @property
    def constrained(self) -> bool:
        """Whether a schema or a grammar says what the answer may be."""
        return self.json_schema is not None or self.grammar is not None

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all options, in order."""
        return tuple(f.name for f in fields(cls))

    @classmethod
    def of(cls, options: dict[str, Any]) -> Self:
        """Build from keyword options, refusing unknown names.

        Raises
        ------
        InvalidRequest
            For an unknown name or a bad value.
        """
        unknown = sorted(set(options) - set(cls.names()))
        if unknown:
            raise InvalidRequest(
                f"unknown option {unknown[0]!r}; allowed: {', '.join(cls.names())}"
            )
        return cls(**options)


def _whole(name: str, value: object, low: int, high: int | None) -> None:
    allowed = f"at least {low}" if high is None else f"from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be a whole number {allowed}, not {value!r}")
    if value < low or (high is not None and value > high):
        raise InvalidRequest(f"{name} must be a whole number {allowed}, not {value}")


def _number(name: str, value: object, low: float, high: float, above: bool = False) -> None:
    allowed = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number {allowed}, not {value!r}")
    if not low <= value <= high or (above and value == low):  # NaN is in no range
        raise InvalidRequest(f"{name} must be a number {allowed}, not {value}")


def _strings(value: object) -> tuple[str, ...]:
    items: Iterable[object] = (value,) if isinstance(value, str) else _listed("stop", value)
    strings = tuple(items)
    for item in strings:
        if not isinstance(item, str) or not item:
            raise InvalidRequest(f"stop must be non-empty strings, not {item!r}")
    return strings  # type: ignore[return-value]


def _ids(value: object) -> tuple[int, ...]:
    ids = tuple(_listed("stop_token_ids", value))
    for item in ids:
        if isinstance(item, bool) or not isinstance(item, int) or item < 0:
            raise InvalidRequest(f"stop_token_ids must be token ids of at least 0, not {item!r}")
    return ids  # type: ignore[return-value]


def _bias(value: object) -> dict[int, float]:
    """A copy, which nobody else can change."""
    allowed = (
        f"a mapping of at most {MAX_BIASED} token ids to numbers from {-MAX_BIAS:g} to {MAX_BIAS:g}"
    )
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"logit_bias must be {allowed}, not {value!r}")
    if len(value) > MAX_BIASED:
        raise InvalidRequest(f"logit_bias must be {allowed}, not of {len(value)}")
    for token, bias in value.items():
        whole = isinstance(token, int) and not isinstance(token, bool) and token >= 0
        number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not whole or not number or not -MAX_BIAS <= bias <= MAX_BIAS:
            raise InvalidRequest(f"logit_bias must be {allowed}, not {token!r}: {bias!r}")
    return {token: float(bias) for token, bias in value.items()}


def _schema(value: object) -> str:
    """A schema as JSON text."""
    allowed = f"an object, or its JSON text, of at most {MAX_GRAMMAR} characters"
    try:
        schema = json.loads(value) if isinstance(value, str) else value
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise InvalidRequest(f"json_schema must be {allowed}, not {value!r:.40}")
    if len(text) > MAX_GRAMMAR:
        raise InvalidRequest(f"json_schema must be {allowed}, not {len(text)}")
    return text


def _grammar(value: object) -> str:
    allowed = f"text of at most {MAX_GRAMMAR} characters"
    if not isinstance(value, str) or not value.strip():
        raise InvalidRequest(f"grammar must be {allowed}, not {value!r:.40}")
    if len(value) > MAX_GRAMMAR:
        raise InvalidRequest(f"grammar must be {allowed}, not {len(value)}")
    return value


def _listed(name: str, value: object) -> Iterable[object]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise InvalidRequest(f"{name} must be a list, not {value!r}")
    return value


def _choice(name: str, value: object, kind: type[Choice]) -> Choice:
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        allowed = ", ".join(kind)
        raise InvalidRequest(f"{name} must be one of {allowed}, not {value!r}") from None
