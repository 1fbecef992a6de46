"""What a request gives back: the same tokens by every way in, and stats that are true."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.request import FinishReason, Generation
from mtplx_kernel.engine.timeline import DecodeWindow, Timeline
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.models import blas
from tests.engine.conftest import CONTEXT, PROBE, Start

REPETITIVE = [10, 20, 30, 40, 50] * 8
SAMPLED: dict[str, Any] = {"max_tokens": 40, "temperature": 0.9, "top_p": 0.95, "seed": 11}


def test_every_way_in_gives_the_same(engine: Engine) -> None:
    seen: list[tuple[int, str]] = []
    by_generate = engine.generate(PROBE, max_tokens=30, on_token=lambda i, t: seen.append((i, t)))
    pieces = list(engine.stream(PROBE, max_tokens=30))
    handle = engine.submit(PROBE, max_tokens=30)
    by_submit = handle.result()
    (by_batch,) = engine.generate_batch([PROBE], max_tokens=30)
    assert isinstance(by_batch, Generation)
    assert by_generate.token_ids == by_submit.token_ids == by_batch.token_ids
    assert "".join(pieces) == "".join(handle) == by_generate.text == by_submit.text
    assert tuple(i for i, _ in seen) == by_generate.token_ids
    assert by_generate.text.startswith("".join(t for _, t in seen))
    assert by_generate.text == engine.tokenizer.decode(list(by_generate.token_ids))
    assert by_generate.finish_reason is FinishReason.LENGTH
    assert len(by_generate.token_ids) == 30


def test_text_goes_through_the_chat_template_unless_raw(engine: Engine) -> None:
    chat = engine.submit("Hi", max_tokens=1)
    raw = engine.submit("Hi", max_tokens=1, raw=True, system=None)
    messages = engine.submit([{"role": "user", "content": "Hi"}], max_tokens=1)
    system = engine.submit("Hi", max_tokens=1, system="Be brief.")
    decode = engine.tokenizer.decode
    templated = "<|start|>user\nHi<|end|>\n<|start|>assistant\n"
    assert decode(list(chat.request.prompt_ids)) == templated
    assert messages.request.prompt_ids == chat.request.prompt_ids
    assert decode(list(raw.request.prompt_ids)) == "Hi"
    assert decode(list(system.request.prompt_ids)).startswith("<|start|>system\nBe brief.<|end|>")
    assert [h.result().stats.completion_tokens for h in (chat, raw, messages, system)] == [1] * 4


@pytest.mark.parametrize("prompt", [PROBE, REPETITIVE], ids=["plain", "repetitive"])
def test_a_seed_gives_the_same_in_both_modes(engine: Engine, prompt: list[int]) -> None:
    ar = engine.generate(prompt, mode="ar", **SAMPLED)
    mtp = engine.generate(prompt, mode="mtp", **SAMPLED)
    assert ar.token_ids == mtp.token_ids
    assert ar.text == mtp.text


def test_the_reported_seed_reproduces_the_run(engine: Engine) -> None:
    first = engine.generate(PROBE, max_tokens=20, temperature=1.0)
    second = engine.generate(PROBE, max_tokens=20, temperature=1.0)
    assert first.stats.seed != second.stats.seed
    again = engine.generate(PROBE, max_tokens=20, temperature=1.0, seed=first.stats.seed)
    assert again.token_ids == first.token_ids != second.token_ids


def greedy_loop(engine: Engine) -> list[int]:
    """A prompt that the model goes on to repeat: what it said itself, twice."""
    said = list(engine.generate(PROBE, max_tokens=60, ignore_eos=True).token_ids)
    return [*PROBE, *said, *PROBE]


def test_stats_count_what_was_emitted(engine: Engine) -> None:
    found = engine.generate(greedy_loop(engine), mode="mtp", depth=3, max_tokens=50)
    stats, window = found.stats, found.window
    assert stats.completion_tokens == len(found.token_ids) == window.completion_tokens == 50
    assert stats.prompt_tokens == 70
    assert stats.drafted_by_depth is not None
    assert stats.accepted_by_depth is not None
    assert stats.verify_calls is not None
    assert 0 < len(stats.drafted_by_depth) <= 3
    # Every verify gives one token, and every accepted draft one more.
    assert stats.verify_calls + sum(stats.accepted_by_depth) == 50
    assert stats.tokens_per_cycle == 50 / stats.verify_calls
    assert stats.verify_calls >= stats.drafted_by_depth[0]
    for depth, (drafted, accepted) in enumerate(
        zip(stats.drafted_by_depth, stats.accepted_by_depth, strict=True)
    ):
        assert accepted <= drafted <= stats.drafted_by_depth[max(0, depth - 1)]


def test_fields_that_do_not_apply_are_absent(engine: Engine) -> None:
    ar = engine.generate(PROBE, mode="ar", max_tokens=1).stats.as_dict()
    assert {"drafted_by_depth", "accepted_by_depth", "decode_tok_s", "draft_error"}.isdisjoint(ar)
    assert ar["generation_mode"] == "ar"
    assert ar["verify_calls"] == 1
    assert None not in ar.values()
    json.dumps(ar)


def test_the_times_of_a_window_are_ordered(engine: Engine) -> None:
    first = engine.submit(PROBE, max_tokens=5)
    second = engine.submit(PROBE, max_tokens=5)
    windows = [first.result().window, second.result().window]
    for w in windows:
        times = (w.submitted, w.admitted, w.prefill_started, w.first_token, w.ended)
        found = [t for t in times if t is not None]
        assert len(found) == 5
        assert found == sorted(found)
        assert w.finish_reason == "length"
    assert windows[0].ended is not None
    assert windows[1].admitted is not None
    assert windows[0].ended <= windows[1].admitted
    assert engine.timeline.windows()[-2:] == windows
    assert json.loads(json.dumps(engine.timeline.to_records()))[-1]["completion_tokens"] == 5


def test_the_timeline_forgets_the_oldest() -> None:
    timeline = Timeline(capacity=2)
    for name in "abc":
        timeline.open(DecodeWindow(name, 0.0))
    assert [w.request_id for w in timeline.windows()] == ["b", "c"]


def test_status_is_plain_data(engine: Engine) -> None:
    status = json.loads(json.dumps(engine.status()))
    assert status == engine.status()
    assert status["model"]["name"] == "tiny-llama"
    assert status["model"]["family"] == "llama"
    assert status["model"]["context_length"] == CONTEXT
    assert status["model"]["parameters"] == 181_312
    assert status["mode"] == "mtp"
    assert status["mode_reason"] is None
    assert status["caches"] == {"rollback": True, "reason": None}
    assert status["drafters"] == ["lookup"]
    assert list(status["verify_ms"])[:2] == ["1", "2"]
    assert status["scheduler"]["mode"] == "serial"
    assert status["memory_bytes"] >= 4 * status["model"]["parameters"]
    assert status["queue"] == {"waiting": 0, "limit": 256}
    assert repr(engine) == "<Engine tiny-llama: mode mtp, scheduler serial, running>"


def test_status_decides_nothing_about_the_blas(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = engine.status()["blas"]
    assert before["kind"] == "stock"
    # A load would now look for the fast BLAS, and put it under whatever runs.
    monkeypatch.delenv("MTPLX_KERNEL_BLAS")
    monkeypatch.setattr(blas, "_decide", lambda *_: pytest.fail("decided again"))
    assert engine.status()["blas"] == before


def test_a_stop_string_ends_the_text_before_it(engine: Engine) -> None:
    whole = engine.generate("Tell me", max_tokens=60).text
    stop = next(c for c in whole[5:] if c.isascii() and c.isprintable())
    for mode in ("ar", "mtp"):
        found = engine.generate("Tell me", max_tokens=60, stop=stop, mode=mode)
        pieces = list(engine.stream("Tell me", max_tokens=60, stop=[stop], mode=mode))
        assert found.text == "".join(pieces) == whole[: whole.index(stop)]
        assert found.finish_reason is FinishReason.STOP


def test_bytes_at_the_end_may_complete_a_stop_string(engine: Engine) -> None:
    half = engine.tokenizer.encode("é")[0]  # the first byte of a character: no text by itself
    options: dict[str, Any] = {"max_tokens": 1, "logit_bias": {half: 100}}
    assert engine.generate(PROBE, **options).text == "\ufffd"
    found = engine.generate(PROBE, stop="\ufffd", **options)
    assert (found.text, found.finish_reason) == ("", FinishReason.STOP)
    assert engine.generate(PROBE, stop="x", **options).finish_reason is FinishReason.LENGTH


def test_a_stop_id_ends_the_output_before_it(engine: Engine) -> None:
    whole = engine.generate(PROBE, max_tokens=30).token_ids
    cut = whole.index(whole[9])
    for mode in ("ar", "mtp"):
        found = engine.generate(PROBE, max_tokens=30, stop_token_ids=[whole[9]], mode=mode)
        assert found.token_ids == whole[:cut]
        assert found.finish_reason is FinishReason.STOP
        assert found.stats.completion_tokens == cut


def test_configure_changes_the_default_only(engine: Engine) -> None:
    engine.configure(mode="ar")
    try:
        assert engine.mode == engine.status()["mode"] == "ar"
        assert engine.generate(PROBE, max_tokens=2).stats.generation_mode == "ar"
        assert engine.generate(PROBE, max_tokens=2, mode="mtp").stats.generation_mode == "mtp"
        with pytest.raises(InvalidRequest, match="mode must be one of mtp, ar, not 'fast'"):
            engine.configure(mode="fast", scheduler="serial")
        with pytest.raises(InvalidRequest, match="scheduler 'fast' is no scheduler"):
            engine.configure(mode="mtp", scheduler="fast")
        assert engine.mode == "ar"
    finally:
        engine.configure(mode="mtp", scheduler="serial")


def test_output_ends_where_the_context_ends(start: Start, other_folder: Any) -> None:
    engine = start(other_folder)
    for mode in ("ar", "mtp"):
        options: dict[str, Any] = {"max_tokens": 10_000, "ignore_eos": True, "mode": mode}
        full = engine.generate([7] * 511, **options)
        assert (len(full.token_ids), full.finish_reason) == (1, FinishReason.LENGTH)
        near = engine.generate([7] * 500, **options)
        assert (len(near.token_ids), near.finish_reason) == (12, FinishReason.LENGTH)
        assert near.token_ids[0] == engine.generate([7] * 500, max_tokens=1).token_ids[0]
