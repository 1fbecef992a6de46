"""Prompts reach the magics as they were written, and Python code is left alone."""

from __future__ import annotations

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from mtplx_kernel.verbatim import keep_prompts


@pytest.fixture
def ipython() -> TransformerManager:
    manager = TransformerManager()
    manager.cleanup_transforms.insert(0, keep_prompts)
    return manager


@pytest.mark.parametrize(
    ("source", "options", "body"),
    [
        ("%%mtplx\nWhy?", "", "Why?\n"),
        ("%%mtplx --seed 3 \n>>> 1\n... 2\n", "--seed 3", ">>> 1\n... 2\n"),
        ("\n\n%%mtplx\nIn [1]: x\n", "", "In [1]: x\n"),
        ("%%mtplx\n  indented\n\n", "", "  indented\n\n"),
        ("%%mtplx\n%mtplx ask what?\n", "", "%mtplx ask what?\n"),
        ("%%mtplx\n", "", ""),
    ],
)
def test_cells(ipython: TransformerManager, source: str, options: str, body: str) -> None:
    call = f"get_ipython().run_cell_magic('mtplx', {options!r}, {body!r})\n"
    assert ipython.transform_cell(source) == call


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("%mtplx ask Why is the sky blue?", "ask Why is the sky blue?"),
        ("%mtplx  ask  What's up (and why?", "ask  What's up (and why?"),
        ('%mtplx ask "Why??"  ', 'ask "Why??"'),
    ],
)
def test_lines(ipython: TransformerManager, source: str, line: str) -> None:
    call = f"get_ipython().run_line_magic('mtplx', {line!r})\n"
    assert ipython.transform_cell(source) == call
    assert ipython.transform_cell(f"if True:\n    x = {source}\n") == f"if True:\n    x = {call}"


def test_text_inside_strings_stays(ipython: TransformerManager) -> None:
    source = 's = """\n%mtplx ask what?\n"""\n'
    assert ipython.transform_cell(source) == source


def test_several_questions_in_a_cell(ipython: TransformerManager) -> None:
    made = ipython.transform_cell("%mtplx ask What's it?\n%mtplx ask And that?\n")
    assert made.count("run_line_magic('mtplx'") == 2


@pytest.mark.parametrize(
    "source",
    [
        "%mtplx?",
        "%mtplx status",
        "%%mtplx?",
        "%%time\n%mtplx ask why?\n",
        "x = 1\n",
        "\n",
        "%%mtplxx\na?",
    ],
)
def test_everything_else_is_left_to_ipython(source: str) -> None:
    lines = source.splitlines(keepends=True)
    assert keep_prompts(list(lines)) == lines


def test_a_terminal_still_waits_for_the_body(ipython: TransformerManager) -> None:
    assert ipython.check_complete("%%mtplx\nWhy?")[0] == "incomplete"
    assert ipython.check_complete("%%mtplx\nWhy?\n\n")[0] == "complete"
