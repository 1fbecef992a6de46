"""Sampling parameters: every bad value is refused in one line that says what is allowed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mtplx_kernel.decoding.params import (
    MAX_DEPTH,
    MAX_SEED,
    Acceptance,
    GenerationMode,
    SamplingParams,
)
from mtplx_kernel.errors import InvalidRequest

NAN, INF = float("nan"), float("inf")
BAD: dict[str, tuple[str, list[Any]]] = {
    "max_tokens": ("at least 1", [0, -1, 1.0, "5", None, True, NAN]),
    "temperature": ("from 0 to 100", [-0.1, 100.5, NAN, INF, -INF, 10**400, "hot", None, False]),
    "top_k": ("at least 0", [-1, 2.0, "all", None, True]),
    "top_p": ("above 0 and at most 1", [0, 0.0, -0.5, 1.01, NAN, INF, "0.9", None, True]),
    "min_p": ("from 0 to 1", [-0.01, 1.5, NAN, INF, "0", None, True]),
    "repetition_penalty": ("above 0 and at most 100", [0, -1.0, 101, NAN, INF, "1", None]),
    "presence_penalty": ("from -100 to 100", [-101, 101, NAN, -INF, -(10**400), "0", None]),
    "frequency_penalty": ("from -100 to 100", [-101, 101, NAN, INF, [], None]),
    "penalty_context": ("at least 1", [0, -5, 2.5, "20", None]),
    "logit_bias": (
        "a mapping of at most 300 token ids to numbers from -100 to 100",
        [
            *({5: bias} for bias in (100.5, -101, NAN, INF, 10**400, "1", None, True)),
            *({token: 1} for token in (-1, 1.0, "5", None, True)),
            *({2: 3}.items(), [5], 5, "5", dict.fromkeys(range(301), 1)),
        ],
    ),
    "logprobs": ("from 0 to 20", [-1, 21, 1.0, "3", True, [], NAN]),
    "json_schema": (
        "an object, or its JSON text, of at most 65536 characters",
        ["", "no JSON", "[]", [], 5, True, {1: {2}}, {"minimum": NAN}, {"enum": ["a" * 65536]}],
    ),
    "grammar": ("text of at most 65536 characters", ["", " ", 5, {}, True, "a" * 65537]),
    "seed": (f"from 0 to {MAX_SEED}", [-1, MAX_SEED + 1, 1.5, "7", True]),
    "stop": ("", ["", [""], ["a", ""], [3], 5, None, {"a": 1}, b"x"]),
    "stop_token_ids": ("", [[-1], [1.5], ["2"], [True], 7, None, "7"]),
    "ignore_eos": ("True or False", [1, 0, None, "yes"]),
    "mode": ("mtp, ar", ["fast", "MTP", "", 1, []]),
    "depth": (f"from 0 to {MAX_DEPTH}", [-1, MAX_DEPTH + 1, 2.0, "3", True]),
    "acceptance": ("coupled", ["exact", "", None, 3]),
}
REFUSED = [(name, value) for name, (_, values) in BAD.items() for value in values]


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=[f"{n}={str(v)[:12]}" for n, v in REFUSED])
def test_bad_values_are_refused_in_one_line(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"{name} must be ")
    assert BAD[name][0] in message
    assert "\n" not in message
    assert ", not " in message


def test_every_option_has_bad_values() -> None:
    assert set(BAD) == set(SamplingParams.names())


GOOD: dict[str, list[Any]] = {
    "max_tokens": [1, 10**9],
    "temperature": [0, 0.0, 1, 100.0, 5e-324],
    "top_k": [0, 1, 10**9],
    "top_p": [1e-9, 0.5, 1, 1.0],
    "min_p": [0, 0.5, 1],
    "repetition_penalty": [1e-6, 1, 100],
    "presence_penalty": [-100, 0, 100.0],
    "frequency_penalty": [-2.5, 2.5],
    "penalty_context": [1, 10**6],
    "json_schema": [None, "{}", '{"type":"string"}', '{"enum":["é"]}'],
    "grammar": [None, 'start: "a"'],
    "logit_bias": [None, {0: -100, 5: 100.0}, dict.fromkeys(range(300), 0.5)],
    "logprobs": [None, 0, 20],
    "seed": [None, 0, MAX_SEED],
    "ignore_eos": [True, False],
    "depth": [None, 0, MAX_DEPTH],
}


@pytest.mark.parametrize("name", GOOD)
def test_the_edges_are_allowed(name: str) -> None:
    for value in GOOD[name]:
        assert getattr(SamplingParams(**{name: value}), name) == value


def test_plain_values_become_what_they_mean() -> None:
    params = SamplingParams(
        stop="END",
        stop_token_ids=[3, 1],  # type: ignore[arg-type]
        mode="ar",  # type: ignore[arg-type]
        acceptance="coupled",  # type: ignore[arg-type]
    )
    assert params.stop == ("END",)
    assert params.stop_token_ids == (3, 1)
    assert params.mode is GenerationMode.AR
    assert params.acceptance is Acceptance.COUPLED
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


def test_parameters_do_not_change() -> None:
    params = SamplingParams()
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.seed = 3  # type: ignore[misc]
    assert params == SamplingParams.of({})
    assert len({params, SamplingParams(), SamplingParams(seed=1)}) == 2


def test_a_bias_is_the_requests_own() -> None:
    given = {7: 2, 3: -1.5}
    params = SamplingParams(logit_bias=given)
    given[7] = 50
    assert params.logit_bias == {7: 2.0, 3: -1.5}
    assert params == SamplingParams(logit_bias={3: -1.5, 7: 2}) != SamplingParams()
    assert hash(params) == hash(SamplingParams())
    assert SamplingParams(logit_bias={}) == SamplingParams()


@pytest.mark.parametrize(
    ("options", "adjusts"),
    [({}, False), ({"logit_bias": {1: 1}}, True), ({"presence_penalty": 1}, True)],
)
def test_what_changes_the_logits(options: dict[str, Any], adjusts: bool) -> None:
    assert SamplingParams(**options).adjusts is adjusts


def test_unknown_options_are_named_with_the_allowed_ones() -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams.of({"top_q": 1, "max_tokens": 3})
    message = str(caught.value)
    assert message.startswith("unknown option 'top_q'; allowed: max_tokens, temperature, ")
    assert "\n" not in message
    assert SamplingParams.of({"max_tokens": 3}).max_tokens == 3


@pytest.mark.parametrize(
    ("options", "greedy", "penalised"),
    [
        ({}, True, False),
        ({"temperature": 0.1}, False, False),
        ({"repetition_penalty": 1.1}, True, True),
        ({"presence_penalty": -1}, True, True),
        ({"frequency_penalty": 0.5, "temperature": 1}, False, True),
        ({"penalty_context": 5}, True, False),
    ],
)
def test_what_the_options_ask_of_sampling(
    options: dict[str, Any], greedy: bool, penalised: bool
) -> None:
    params = SamplingParams(**options)
    assert (params.greedy, params.penalised) == (greedy, penalised)


def test_a_schema_is_kept_as_text() -> None:
    """So nobody can change it, and equal ones are one."""
    for given in ({"type": "object", "minProperties": 1}, ' {"type": "object", "minProperties":1}'):
        params = SamplingParams(json_schema=given)  # type: ignore[arg-type]
        assert params.json_schema == '{"type":"object","minProperties":1}'


def test_what_cannot_be_together_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="json_schema and grammar cannot both be given"):
        SamplingParams(json_schema="{}", grammar='start: "a"')
    for held in ({"json_schema": "{}"}, {"grammar": 'start: "a"'}):
        with pytest.raises(InvalidRequest, match="ignore_eos is refused with json_schema"):
            SamplingParams(ignore_eos=True, **held)  # type: ignore[arg-type]
