"""Chats: OpenAI's shapes, and the same answer however it is asked for."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.server.site import CHAT, HELLO, MODEL, Site, reason_of, text_of

PROMPT_TOKENS = 24
"""Of `HELLO` in the template: a token a byte, and three markers."""


def contents(answer: dict[str, Any]) -> list[str]:
    return [choice["message"]["content"] for choice in answer["choices"]]


def test_an_answer_is_openais_object(site: Site) -> None:
    before = int(time.time())
    answer = site.ask(CHAT)
    expected = site.engine.generate(HELLO, max_tokens=12)
    assert list(answer) == [
        "id",
        "object",
        "created",
        "model",
        "system_fingerprint",
        "choices",
        "usage",
    ]
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{24}", answer["id"])
    assert (answer["object"], answer["model"]) == ("chat.completion", MODEL)
    assert before <= answer["created"] <= time.time()
    assert re.fullmatch(r"fp_[0-9a-f]{12}", answer["system_fingerprint"])
    message = {"role": "assistant", "content": expected.text, "refusal": None}
    assert answer["choices"] == [
        {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    ]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (PROMPT_TOKENS, 12)
    assert usage["total_tokens"] == PROMPT_TOKENS + 12


def test_two_answers_differ_in_their_ids_and_share_their_fingerprint(site: Site) -> None:
    first, second = site.ask(CHAT), site.ask(CHAT)
    assert first["id"] != second["id"]
    assert first["system_fingerprint"] == second["system_fingerprint"]


def test_usage_tells_of_the_prefix_cache_and_of_drafts(site: Site) -> None:
    site.ask(CHAT)
    answer = site.ask(CHAT, include_stats=True)
    (stats,) = answer["mtplx"]["choices"]
    drafted, accepted = sum(stats["drafted_by_depth"]), sum(stats["accepted_by_depth"])
    usage = answer["usage"]
    assert usage["prompt_tokens_details"] == {
        "cached_tokens": stats["cached_tokens"],
        "audio_tokens": 0,
    }
    assert stats["cached_tokens"] > 0
    assert usage["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "audio_tokens": 0,
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": drafted - accepted,
    }


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(site: Site) -> None:
    chunks = site.stream(CHAT)
    first, *between, last = chunks
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    for name in ("id", "created", "model", "system_fingerprint"):
        assert len({chunk[name] for chunk in chunks}) == 1
    assert not any("usage" in chunk for chunk in chunks)
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert between
    for chunk in between:
        (choice,) = chunk["choices"]
        assert list(choice["delta"]) == ["content"]
        assert choice["delta"]["content"]
    assert last["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    ]


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.5, "seed": 3}, {"stop": ["\ufffd"]}])
def test_a_stream_says_what_an_answer_says(site: Site, fields: dict[str, Any]) -> None:
    answer, chunks = site.ask(CHAT, **fields), site.stream(CHAT, **fields)
    (choice,) = answer["choices"]
    assert text_of(chunks) == choice["message"]["content"]
    assert reason_of(chunks) == choice["finish_reason"]


def test_the_usage_of_a_stream_comes_last(site: Site) -> None:
    site.ask(CHAT)
    usage = site.ask(CHAT)["usage"]
    *others, last = site.stream(CHAT, stream_options={"include_usage": True})
    assert (last["choices"], last["usage"]) == ([], usage)
    assert all(chunk["usage"] is None for chunk in others)


def test_stats_come_only_if_asked_for(site: Site) -> None:
    assert "mtplx" not in site.ask(CHAT, include_stats=False)
    (stats,) = site.ask(CHAT, include_stats=True)["mtplx"]["choices"]
    window = site.engine.timeline.windows()[-1]
    assert stats["request_id"] == window.request_id
    assert (stats["completion_tokens"], stats["index"]) == (12, 0)
    *others, last = site.stream(CHAT, include_stats=True)
    assert (last["choices"], last["mtplx"]["choices"][0]["completion_tokens"]) == ([], 12)
    assert not any("mtplx" in chunk for chunk in others)


def test_a_seed_gives_the_same_answer_again(site: Site) -> None:
    first, again, other = (
        contents(site.ask(CHAT, temperature=1.5, seed=seed)) for seed in (7, 7, 8)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("seed", [-1, 2**64 - 2])
def test_several_answers_are_those_of_their_seeds(site: Site, seed: int) -> None:
    fields = {"temperature": 1.5, "seed": seed, "n": 3}
    answer, chunks = site.ask(CHAT, **fields), site.stream(CHAT, **fields)
    alone = [
        site.engine.generate(
            HELLO, max_tokens=12, temperature=1.5, seed=(seed + index) % 2**64
        ).text
        for index in range(3)
    ]
    assert len(set(alone)) == 3
    assert contents(answer) == alone
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [text_of(chunks, index) for index in range(3)] == alone
    assert [reason_of(chunks, index) for index in range(3)] == ["length"] * 3
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (PROMPT_TOKENS, 36)


def test_without_a_seed_answers_differ(site: Site) -> None:
    assert len(set(contents(site.ask(CHAT, temperature=2, n=4)))) == 4


def test_temperature_is_1_if_it_is_not_given(site: Site) -> None:
    expected = site.engine.generate(HELLO, max_tokens=12, temperature=1.0, seed=5).text
    assert contents(site.ask(CHAT, temperature=None, seed=5)) == [expected]


@pytest.mark.parametrize("cut", [3, 5])
def test_a_stop_is_held_back_and_ends_the_answer(site: Site, cut: int) -> None:
    whole = contents(site.ask(CHAT))[0]
    stop = whole[cut : cut + 2]
    end = whole.index(stop)
    for stops in (stop, ["never said", stop]):
        answer, chunks = site.ask(CHAT, stop=stops), site.stream(CHAT, stop=stops)
        assert contents(answer) == [whole[:end]]
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert (text_of(chunks), reason_of(chunks)) == (whole[:end], "stop")


def test_the_end_token_ends_with_reason_stop(site: Site) -> None:
    answer = site.ask(CHAT, logit_bias={"257": 100})
    assert contents(answer) == [""]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 0
    held = site.ask(CHAT, logit_bias={"257": 100}, ignore_eos=True)
    assert held["usage"]["completion_tokens"] == 12


def test_content_is_text_or_parts_and_a_developer_is_the_system(site: Site) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert contents(site.ask(CHAT, messages=[{"role": "user", "content": parts}])) == contents(
        site.ask(CHAT)
    )
    rest = [{"role": "user", "content": "Hi", "name": "Ann"}]
    system, developer = (
        site.ask(CHAT, messages=[{"role": role, "content": "Be brief."}, *rest])
        for role in ("system", "developer")
    )
    assert contents(system) == contents(developer)
    expected = site.engine.generate(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        max_tokens=12,
    )
    assert contents(system) == [expected.text]


def test_an_answer_can_be_sent_back(site: Site) -> None:
    message = site.ask(CHAT)["choices"][0]["message"]
    nothing = {"tool_calls": None, "function_call": None, "audio": None, "annotations": None}
    answer = site.ask(CHAT, messages=[*HELLO, {**message, **nothing}, *HELLO])
    assert answer["usage"]["prompt_tokens"] > PROMPT_TOKENS


def test_what_has_no_effect_is_taken(site: Site) -> None:
    answer = site.ask(
        CHAT,
        user="ann",
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        prompt_cache_key="k",
        safety_identifier="s",
        modalities=["text"],
        response_format={"type": "text"},
        tools=None,
        stop=None,
        n=None,
        logit_bias=None,
        stream_options=None,
    )
    assert contents(answer) == contents(site.ask(CHAT))


def test_either_limit_counts(site: Site) -> None:
    for fields in ({"max_tokens": 3}, {"max_tokens": None, "max_completion_tokens": 3}):
        assert site.ask(CHAT, **fields)["usage"]["completion_tokens"] == 3


def test_modes_and_depths_are_those_of_the_request(site: Site) -> None:
    site.ask(CHAT, generation_mode="ar")
    assert site.engine.timeline.windows()[-1].generation_mode == "ar"
    assert site.engine.timeline.windows()[-1].drafted_by_depth == []
    for depth in (1, 3):
        # It says the same again and again, so there is something to draft.
        site.ask(CHAT, generation_mode="mtp", depth=depth, logit_bias={"5": 100}, max_tokens=40)
        window = site.engine.timeline.windows()[-1]
        assert window.generation_mode == "mtp"
        assert len(window.drafted_by_depth) == depth
