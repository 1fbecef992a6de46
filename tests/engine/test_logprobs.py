"""Log-probabilities and biases through the engine: the same under every scheduler and mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mtplx_kernel as mk
from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.mtp_batch import MTPBatchGenerationService, MTPBatchRequest
from mtplx_kernel.engine.request import Generation, TokenLogprob
from mtplx_kernel.errors import InvalidRequest, RequestFailed
from mtplx_kernel.scheduling.modes import SchedulerMode
from tests.engine.conftest import PROBE
from tests.engine.gates import PATIENCE_S
from tests.engine.test_schedulers import SETTINGS
from tests.tiny import VOCABULARY

REPETITIVE = [10, 20, 30, 40, 50] * 6
BIAS = {i: ((i * 37) % 17 - 8) / 2 for i in range(0, 250, 3)}
TOP = 3


def asks() -> list[tuple[list[int], dict[str, Any]]]:
    """Requests with and without biases, penalties and reports, greedy and sampled.

    The last one's bias makes it repeat itself, so that its drafts are right.
    """
    found: list[tuple[list[int], dict[str, Any]]] = []
    for i in range(12):
        options: dict[str, Any] = {
            "max_tokens": 6 + 3 * (i % 4),
            "temperature": (0.0, 0.9)[i % 2],
            "seed": i,
            "depth": (None, 3)[i % 2],
            "logprobs": (TOP, 0, None)[i % 3],
            "ignore_eos": True,
        }
        if i % 4 < 2:
            options["logit_bias"] = BIAS
        if i % 5 == 1:
            options["repetition_penalty"] = 1.3
        if i % 6 == 4:
            options["mode"] = "ar"
        found.append(([PROBE, REPETITIVE, PROBE * 4][i % 3], options))
    forced = {"logit_bias": {7: 100}, "max_tokens": 20, "depth": 3, "logprobs": TOP}
    return [*found, ([*PROBE, *[7] * 5], forced)]


@pytest.fixture(scope="module")
def served(tiny_folder: Path) -> Iterator[Engine]:
    with mk.load(str(tiny_folder), prefix_cache_mb=0) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(served: Engine) -> list[Generation]:
    """What serial answers in mode ar, one request after the other."""
    return [served.generate(prompt, **{**options, "mode": "ar"}) for prompt, options in asks()]


@pytest.mark.parametrize("mode", SchedulerMode)
def test_every_scheduler_gives_what_serial_gives_in_mode_ar(
    served: Engine, expected: list[Generation], mode: str
) -> None:
    served.configure(scheduler=mode, **SETTINGS[mode])
    handles = [served.submit(prompt, **options) for prompt, options in asks()]
    found = [handle.result(PATIENCE_S) for handle in handles]
    served.configure(scheduler="serial")
    for one, other, (_, options) in zip(found, expected, asks(), strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == other.logprobs
        if options["logprobs"] is None:
            assert one.logprobs is None
        else:
            assert one.logprobs is not None
            assert tuple(told.token_id for told in one.logprobs) == one.token_ids
            assert {len(told.top) for told in one.logprobs} == {options["logprobs"]}
    accepted = sum(found[-1].stats.accepted_by_depth or ())
    assert accepted == 0 if mode == "ar_batch" else accepted > 3


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
@pytest.mark.parametrize("mode", ["ar", "mtp"])
def test_a_bias_keeps_out_and_forces(engine: Engine, mode: str, rule: str) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "seed": 3, "mode": mode, "acceptance": rule}
    said = set(engine.generate(REPETITIVE, max_tokens=30, ignore_eos=True, **options).token_ids)
    kept_out = dict.fromkeys(said, -100)
    other = engine.generate(REPETITIVE, max_tokens=30, logit_bias=kept_out, **options)
    assert other.token_ids
    assert not said & set(other.token_ids)
    forced = engine.generate(REPETITIVE, max_tokens=30, logit_bias={7: 100}, **options)
    assert forced.token_ids == (7,) * 30


def test_callers_are_told_right_before_each_token(engine: Engine) -> None:
    told: list[Any] = []
    found = engine.generate(
        REPETITIVE,
        max_tokens=20,
        logprobs=2,
        on_token=lambda token, _: told.append(token),
        on_logprob=told.append,
    )
    assert found.logprobs is not None
    assert told == [each for own in found.logprobs for each in (own, own.token_id)]
    told.clear()
    handle = engine.submit(PROBE, max_tokens=4, logprobs=0, on_logprob=told.append)
    assert handle.result(PATIENCE_S).logprobs == tuple(told)
    assert all(isinstance(own, TokenLogprob) for own in told)


def test_the_end_token_is_not_among_them(engine: Engine, probe_ids: tuple[int, ...]) -> None:
    found = engine.generate(PROBE, max_tokens=12, logprobs=1, stop_token_ids=[probe_ids[3]])
    assert found.finish_reason == "stop"
    assert found.logprobs is not None
    assert [own.token_id for own in found.logprobs] == list(found.token_ids)
    assert len(found.token_ids) == probe_ids.index(probe_ids[3])


def test_a_callback_that_raises_ends_its_request(engine: Engine) -> None:
    def refuse(told: TokenLogprob) -> None:
        raise ValueError("enough")

    handle = engine.submit(PROBE, max_tokens=9, logprobs=1, on_logprob=refuse)
    line = "the on_logprob callback raised ValueError: enough"
    with pytest.raises(RequestFailed, match=line) as caught:
        handle.result(PATIENCE_S)
    kept = caught.value.generation
    assert isinstance(kept, Generation)
    assert kept.logprobs is not None
    assert tuple(own.token_id for own in kept.logprobs) == kept.token_ids != ()


def test_what_cannot_be_had_is_refused(engine: Engine) -> None:
    for options, line in (
        ({"logit_bias": {VOCABULARY: 1}}, "logit_bias must be of token ids below 260, not 260"),
        ({"on_logprob": print}, "on_logprob needs logprobs, 0 to 20: it is off"),
        ({"on_logprob": 3, "logprobs": 1}, "on_logprob must be a function of a TokenLogprob"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            engine.submit(PROBE, **options)
        assert str(caught.value).startswith(line)
    with pytest.raises(InvalidRequest, match="logit_bias"):
        engine.generate_batch([PROBE, PROBE], logit_bias={VOCABULARY: 1})


def test_a_cohort_of_a_program_has_them_too(served: Engine) -> None:
    served.configure(scheduler="mtp_batch", **SETTINGS["mtp_batch"])
    service = MTPBatchGenerationService(served)
    options: list[dict[str, Any]] = [{"logprobs": TOP}, {"logit_bias": BIAS, "logprobs": 0}, {}]
    requests = [
        MTPBatchRequest(prompt_ids=PROBE, params=SamplingParams(max_tokens=8, **each))
        for each in options
    ]
    beyond = MTPBatchRequest(prompt_ids=PROBE, params=SamplingParams(logit_bias={VOCABULARY: 1}))
    with pytest.raises(InvalidRequest, match="logit_bias"):
        service.generate_mtp_batch([beyond])
    found = service.generate_mtp_batch(requests)
    served.configure(scheduler="serial")
    for one, each in zip(found, options, strict=True):
        alone = served.generate(PROBE, max_tokens=8, mode="ar", **each)
        assert isinstance(one, Generation)
        assert (one.token_ids, one.logprobs) == (alone.token_ids, alone.logprobs)
