"""%%mtplx --batch and --samples: prompts split, run at once, shown in order, kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.error import UsageError

from mtplx_kernel.batch import BatchResult, split_prompts, substitute_each, title
from mtplx_kernel.engine.request import FinishReason, Generation
from mtplx_kernel.errors import InvalidRequest, QueueFull, RequestFailed
from mtplx_kernel.prompt_magics import GenerationInterrupted
from tests.ipython.conftest import Bench
from tests.ipython.scripted import Answer, made

Shown = Callable[[], str]
TWO = "%%mtplx --batch\nOne?\n---\nTwo?\n"


def finished(*pieces: str, finish: FinishReason = FinishReason.STOP) -> Generation:
    return made(*pieces, finish=finish)


def failed(message: str, *pieces: str) -> RequestFailed:
    return RequestFailed(message, made(*pieces, finish=FinishReason.ERROR) if pieces else None)


@pytest.mark.parametrize(
    ("body", "prompts"),
    [
        ("One", ["One"]),
        ("One\n---\nTwo\nlines", ["One", "Two\nlines"]),
        ("\nOne\n\n---\n\nTwo\n\n", ["One", "Two"]),
        ("a\n----\nb\n --- \n-- -\n---x\n---\nc", ["a\n----\nb\n --- \n-- -\n---x", "c"]),
        ("---\nTwo", ["", "Two"]),
        ("  One \n---\n\tTwo", ["  One ", "\tTwo"]),
    ],
)
def test_only_a_line_of_exactly_three_dashes_separates(body: str, prompts: list[str]) -> None:
    assert split_prompts(body) == prompts


def test_variables_go_into_the_prompts_that_name_them() -> None:
    prompts = ["{a} and {b}", '{a} {"json": 1}', "nothing"]
    values: dict[str, object] = {"a": "{b}\n---", "b": 2}
    assert substitute_each(prompts, ["a", "b"], values) == [
        "{b}\n--- and 2",
        '{b}\n--- {"json": 1}',
        "nothing",
    ]
    with pytest.raises(InvalidRequest, match=r"--vars c: the prompt has no \{c\} to replace"):
        substitute_each(prompts, ["c"], {"c": 1})
    with pytest.raises(InvalidRequest, match="--vars b: no such variable"):
        substitute_each(prompts, ["a", "b"], {"a": 1})


def test_a_title_is_the_first_words_on_one_line() -> None:
    assert title("Why is\n\nthe sky   blue?") == "Why is the sky blue?"
    assert title("x" * 48) == "x" * 48
    assert title("word " * 20) == ("word " * 10)[:46].rstrip() + " …"


def test_a_result_is_a_list_with_totals() -> None:
    one, two = finished("a", "b"), finished("c", finish=FinishReason.INTERRUPTED)
    three, four = failed("NaN\nlogits", "d", "e", "f"), QueueFull("the queue is full")
    result = BatchResult(["One?", "Two?", "Three?", "Four?"], [one, two, three, four])
    assert (len(result), result[0], list(result[1:3])) == (4, one, [two, three])
    assert list(result) == [one, two, three, four]
    assert result.texts == ["ab", "c", "def", ""]
    assert result.errors == [three, four]
    # Each scripted answer takes the second from 0 to 1.
    assert (result.complete, result.tokens, result.seconds, result.tok_s) == (1, 6, 1.0, 6.0)
    assert repr(result) == (
        "<4 requests: 1 complete, 1 cut short, 2 failed, 6 tokens in 1.0 s (6.0 tok/s together)>"
    )
    assert result.page == (
        "[1] One? (2 tokens, stop)\nab\n\n"
        "[2] Two? (1 token, interrupted)\nc\n\n"
        "[3] Three? (failed: NaN logits)\ndef\n\n"
        "[4] Four? (failed: the queue is full)"
    )
    assert repr(result[3:]) == "<1 request: 1 failed, 0 tokens in 0.0 s>"
    assert repr(BatchResult([], [])) == "<0 requests: none, 0 tokens in 0.0 s>"


def test_pages_escape_prompts_and_leave_answers() -> None:
    result = BatchResult(["<b> & *x*_y_", "2"], [finished("*bold*"), finished("<i>")])
    assert result.markdown == (
        "**\\[1\\] \\<b\\> & \\*x\\*\\_y\\_ (1 token, stop)**\n\n*bold*\n\n"
        "**\\[2\\] 2 (1 token, stop)**\n\n<i>"
    )
    page = result._repr_html_()
    assert "<summary>2 requests: 2 complete, 2 tokens in 1.0 s (2.0 tok/s together)<" in page
    assert "<li>[1] &lt;b&gt; &amp; *x*_y_ (1 token, stop)</li>" in page
    assert "<b>" not in page


def test_a_cell_runs_its_prompts_at_once_and_shows_them_in_order(
    loaded: Bench, shown: Shown
) -> None:
    loaded.engine.answers = [Answer(("First", " answer")), Answer(("Second",))]
    result = loaded.run(
        "%%mtplx --batch --max-tokens 9 --system 'Be brief.' --out both\nOne?\n---\nTwo?\n"
    )
    assert isinstance(result, BatchResult)
    totals = "<2 requests: 2 complete, 3 tokens in 1.0 s (3.0 tok/s together)>"
    assert shown() == (
        "1 of 2: [1] One? (2 tokens, stop)\n"
        "2 of 2: [2] Two? (1 token, stop)\n"
        "\n"
        "[1] One? (2 tokens, stop)\nFirst answer\n\n"
        "[2] Two? (1 token, stop)\nSecond\n"
        f"Out[2]: {totals}\n"
    )
    assert [(prompt, o["max_tokens"], o["system"]) for prompt, o in loaded.engine.asked] == [
        ("One?", 9, "Be brief."),
        ("Two?", 9, "Be brief."),
    ]
    assert loaded.shell.user_ns["both"] is loaded.shell.user_ns["_mtplx"] is result


def test_quiet_shows_nothing_and_a_semicolon_hides_the_totals(loaded: Bench, shown: Shown) -> None:
    result = loaded.run("%%mtplx --batch --quiet\nOne?\n---\nTwo?")
    assert shown() == ""
    assert len(loaded.shell.user_ns["_mtplx"]) == 2
    assert result is None or isinstance(result, BatchResult)
    loaded.run("%config MtplxMagics.stream = False")
    loaded.run("%%mtplx --batch\nOne?\n---\nTwo?;")
    assert shown() == (
        "[1] One? (3 tokens, stop)\nHello there.\n\n[2] Two? (3 tokens, stop)\nHello there.\n"
    )
    assert loaded.engine.asked[-1][0] == "Two?"


def test_variables_in_a_cell(loaded: Bench) -> None:
    loaded.shell.user_ns["topic"] = "rivers"
    loaded.run("%%mtplx --batch --quiet --raw --vars topic\nOf {topic}\n---\nOf {others}")
    assert [prompt for prompt, _ in loaded.engine.asked] == ["Of rivers", "Of {others}"]


def test_samples_take_neighbouring_seeds(loaded: Bench, shown: Shown) -> None:
    result = loaded.run("%%mtplx --samples 3 --temperature 0.8 --seed 7\nOne\n---\ntwo")
    assert isinstance(result, BatchResult)
    assert [(p, o["seed"]) for p, o in loaded.engine.asked] == [
        ("One\n---\ntwo", seed) for seed in (7, 8, 9)
    ]
    assert "[3] One --- two [seed 9] (3 tokens, stop)\nHello there.\n" in shown()
    loaded.engine.asked.clear()
    loaded.run("%%mtplx --batch --samples 2 --temperature 1\nOne\n---\nTwo")
    prompts = [p for p, _ in loaded.engine.asked]
    first, second, third, fourth = (o["seed"] for _, o in loaded.engine.asked)
    assert prompts == ["One", "One", "Two", "Two"]
    assert (second, third, fourth) == (first + 1, first, first + 1)
    loaded.engine.asked.clear()
    assert isinstance(loaded.run("%mtplx ask --samples 2 --temperature 1 Hi"), BatchResult)
    assert [p for p, _ in loaded.engine.asked] == ["Hi", "Hi"]


def test_one_failure_does_not_lose_the_rest(loaded: Bench, shown: Shown) -> None:
    loaded.engine.answers = [Answer(pieces=("Hel",), error="NaN logits"), Answer()]
    result: Any = loaded.run(TWO)
    assert isinstance(result[0], RequestFailed)
    assert result[1].text == "Hello there."
    assert "[1] One? (failed: NaN logits)\nHel\n\n[2] Two? (3 tokens, stop)\n" in shown()


def test_more_prompts_than_the_queue_holds(loaded: Bench) -> None:
    loaded.engine.room = 1
    loaded.engine.answers = [Answer((str(n),), endless=True) for n in range(4)]
    # The scripted queue ends its oldest request when one more comes than it has room for.
    loaded.engine.answers[3] = Answer(("3",))
    result: Any = loaded.run("%%mtplx --batch\na\n---\nb\n---\nc\n---\nd")
    assert result.texts == ["0", "1", "2", "3"]
    assert [p for p, _ in loaded.engine.asked] == ["a", "b", "c", "d"]


def test_an_interrupt_ends_all_and_keeps_what_is_there(loaded: Bench, shown: Shown) -> None:
    loaded.engine.answers = [
        Answer(("Done",)),
        Answer(("Half",), endless=True, interrupts=1),
        Answer(("Never",), endless=True),
    ]
    error = loaded.run("%%mtplx --batch --out kept\nOne\n---\nTwo\n---\nThree")
    assert isinstance(error, GenerationInterrupted)
    kept = loaded.shell.user_ns["kept"]
    assert kept is loaded.shell.user_ns["_mtplx"]
    assert shown().endswith(
        "\nInterrupted: 1 of 3 answers are complete; they and what there is of the others are in "
        "_mtplx.\n"
    )
    assert kept.texts == ["Done", "Half", ""]
    assert kept[1].finish_reason is FinishReason.INTERRUPTED
    # The third was not submitted any more.
    assert str(kept[2]) == "not run: the cell was interrupted"
    loaded.engine.answers.clear()
    assert isinstance(loaded.run("%%mtplx\nagain"), Generation)


def test_a_second_interrupt_does_not_wait(loaded: Bench, shown: Shown) -> None:
    loaded.engine.answers = [Answer(("Done",)), Answer(endless=True, stuck=True, interrupts=2)]
    assert isinstance(loaded.run(TWO), GenerationInterrupted)
    assert shown().endswith("Interrupted; the model is busy with one step and lets go after it.\n")
    kept = loaded.shell.user_ns["_mtplx"]
    assert kept.texts == ["Done", ""]
    assert str(kept[1]) == "not ended: the cell was left before"
    assert loaded.engine.open[0].cancel_reason is FinishReason.INTERRUPTED


def test_text_that_cannot_be_shown_cancels_the_requests(
    loaded: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded.engine.answers = [Answer(("One",)), Answer(("Two",), endless=True)]

    def broken(*args: Any, **options: Any) -> None:
        raise OSError("a closed pipe")

    with monkeypatch.context() as patch:
        patch.setattr("mtplx_kernel.boards.PrintedBoard.update", broken)
        assert isinstance(loaded.run(TWO), OSError)
    kept = loaded.shell.user_ns["_mtplx"]
    assert kept.texts == ["One", "Two"]
    assert kept[1].finish_reason is FinishReason.CANCELLED


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            "%%mtplx --batch --chat\nOne\n---\nTwo",
            "--batch and --chat exclude each other: a conversation has one answer",
        ),
        (
            "%%mtplx --samples 2 --chat\nOne",
            "--samples and --chat exclude each other: a conversation has one answer",
        ),
        (
            "%%mtplx --batch\nOne\n---\n\n---\nThree",
            "prompt 2 of 3 is empty; write one, or take a line of --- out",
        ),
        ("%%mtplx --batch\n \n", "the prompt is empty; write one after the options"),
        (
            "%%mtplx --samples 2\nOne",
            "--samples 2 needs a --temperature above 0: greedy answers are all the same",
        ),
        ("%%mtplx --samples 0\nOne", "--samples must be a whole number at least 1, not 0"),
        ("%%mtplx --samples x\nOne", "--samples must be a whole number at least 1, not 'x'"),
        (
            f"%%mtplx --samples 3 --temperature 1 --seed {2**64 - 2}\nOne",
            f"--seed must be at most {2**64 - 3} with --samples 3, not {2**64 - 2}",
        ),
        ("%mtplx ask --batch One", "--batch takes a %%mtplx cell; %mtplx ask has one prompt"),
        (
            "%%mtplx --batch --vars no\nOne\n---\nTwo",
            "--vars no: no such variable; define it in a cell above",
        ),
        (
            "%%mtplx --batch --priority 0\nOne\n---\nTwo",
            "--priority must be a number from 0.01 to 100, not 0.0",
        ),
        ("%%mtplx --priority 0\nOne", "--priority must be a number from 0.01 to 100, not 0.0"),
    ],
)
def test_mistakes_are_one_line(loaded: Bench, shown: Shown, cell: str, message: str) -> None:
    assert isinstance(loaded.run(cell), UsageError)
    assert shown() == f"UsageError: {message}\n"
    assert loaded.engine.asked == []


def test_priority_reaches_the_engine(loaded: Bench) -> None:
    loaded.run("%%mtplx --priority 4\nOne")
    assert loaded.engine.asked[-1][1]["priority"] == 4.0
    loaded.run("%%mtplx\nOne")
    assert "priority" not in loaded.engine.asked[-1][1]


def test_without_a_model_the_line_says_how_to_load_one(bench: Bench, shown: Shown) -> None:
    bench.run(TWO)
    assert re.search("no model is loaded; load one: %mtplx load", shown())
