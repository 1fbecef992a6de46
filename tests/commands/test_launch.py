"""Which model a command was told to load, and how."""

from __future__ import annotations

from typing import Any

import pytest

from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.launch import chosen


@pytest.mark.parametrize(
    ("words", "given", "name", "loading"),
    [
        ([], {}, "smollm2-135m", {}),
        (["a"], {}, "a", {}),
        ([], {"model": "a"}, "a", {}),
        (["a"], {"no_mtp": True}, "a", {"mode": "ar"}),
        (["a"], {"mode": "mtp", "head": "none"}, "a", {"mode": "mtp", "head": "none"}),
        (["a"], {"scheduler_mode": "hyper"}, "a", {"scheduler": "hyper"}),
        (
            ["a"],
            {"scheduler_mode": "mtp_batch", "width": 4, "refill": True},
            "a",
            {"scheduler": "mtp_batch", "width": 4, "sealed": False},
        ),
        (["a"], {"experimental_cohorts": True}, "a", {"experimental": True}),
    ],
)
def test_the_model_and_how_it_is_loaded(
    words: list[str], given: dict[str, Any], name: str, loading: dict[str, Any]
) -> None:
    rest = {"port": 1, **given}
    assert chosen(words, rest) == (name, loading)
    assert rest == {"port": 1}


@pytest.mark.parametrize(
    ("words", "given", "message"),
    [
        (["a"], {"model": "a"}, "MODEL and --model exclude each other: they name the same thing"),
        ([], {"mode": "ar", "no_mtp": True}, "--mode and --no-mtp exclude each other"),
        ([], {"sealed": True, "refill": True}, "--sealed and --refill exclude each other"),
    ],
)
def test_what_excludes_each_other(words: list[str], given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chosen(words, given)
    assert str(refused.value) == message
