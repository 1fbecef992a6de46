"""How a notebook shows a result: the line of stats, which unfolds to all of them."""

from __future__ import annotations

from dataclasses import replace

from tests.ipython.scripted import made


def test_the_line_unfolds_to_all_stats() -> None:
    result = made("Hello", " there")
    result = replace(
        result,
        stats=replace(
            result.stats,
            decode_tok_s=123.456,
            accepted_by_depth=(3, 1),
            draft_error="lookup: ValueError: <b>",
        ),
    )
    page = result._repr_html_()
    assert page.startswith("<details><summary>&lt;stop: 2 tokens, 123.5 tok/s, mode mtp&gt;<")
    for name in result.stats.as_dict():
        assert f">{name}</th>" in page
    assert ">123.5</td>" in page
    assert ">3, 1</td>" in page
    assert ">lookup: ValueError: &lt;b&gt;</td>" in page
    # The text was streamed above it: it is not there a second time.
    assert "Hello" not in page
