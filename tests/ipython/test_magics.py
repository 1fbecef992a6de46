"""%mtplx and %%mtplx in a shell, against an engine that plays back scripted answers."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from IPython.core.error import UsageError
from traitlets import TraitError

from mtplx_kernel import options
from mtplx_kernel.engine.request import FinishReason, Generation
from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.prompt_magics import GenerationInterrupted
from tests.ipython.conftest import Bench
from tests.ipython.scripted import Answer, ScriptedEngine

Shown = Callable[[], str]
STATS = "<stop: 3 tokens, mode mtp>"


def one_line(shown: Shown) -> str:
    text = shown().strip()
    assert text.startswith("UsageError: "), text
    assert "\n" not in text
    return text.removeprefix("UsageError: ")


def test_a_cell_streams_and_its_value_is_a_line_of_stats(loaded: Bench, shown: Shown) -> None:
    result = loaded.run("%%mtplx\nHi?\n")
    assert isinstance(result, Generation)
    assert shown() == f"Hello there.\nOut[2]: {STATS}\n"
    assert loaded.shell.user_ns["_mtplx"] is result
    assert loaded.shell.user_ns["_"] is result


def test_the_prompt_is_sent_as_it_stands(loaded: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 'x = {"a": [1]}; f"{x}" $HOME {HOME} {{a}} \\n %time !ls\n  >>> 1 + 1\n... what?\n\n'
    loaded.shell.user_ns["x"] = "wrong"
    loaded.run(f"%%mtplx --raw\n{body}")
    # A terminal's empty lines only say that the cell is complete; a notebook's are the user's.
    assert loaded.engine.asked[-1][0] == body.rstrip("\n")
    monkeypatch.setattr(loaded.shell, "kernel", "a kernel", raising=False)
    loaded.run(f"%%mtplx --raw\n{body}")
    assert loaded.engine.asked[-1][0] == body.removesuffix("\n")


def test_options_reach_the_engine_and_defaults_fill_the_rest(loaded: Bench) -> None:
    loaded.run("%config MtplxMagics.max_tokens = 9")
    loaded.run("%%mtplx --mode ar --seed 3 --stop \\n --top-k 4 --system 'Be brief.'\nHi")
    prompt, asked = loaded.engine.asked[-1]
    assert prompt == "Hi"
    assert asked == {
        "max_tokens": 9,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 4,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "mode": "ar",
        "seed": 3,
        "stop": ["\n"],
        "system": "Be brief.",
    }


def test_raw_text_takes_no_system_message_of_the_defaults(loaded: Bench) -> None:
    loaded.run("%config MtplxMagics.system = 'Be brief.'")
    loaded.run("%%mtplx --raw\nOnce")
    assert loaded.engine.asked[-1][1]["raw"] is True
    assert "system" not in loaded.engine.asked[-1][1]
    loaded.run("%%mtplx\nOnce")
    assert loaded.engine.asked[-1][1]["system"] == "Be brief."


@pytest.mark.parametrize(
    ("line", "prompt"),
    [
        ("%mtplx ask Why is the sky blue?", "Why is the sky blue?"),
        ("%mtplx ask What's the capital (of France?", "What's the capital (of France?"),
        ("%mtplx ask 'quoted' --seed 3", "quoted"),
        ("%mtplx ask --seed 3 {x} $x", "{x} $x"),
        ("%mtplx ask hidden;", "hidden"),
    ],
)
def test_ask_takes_a_line(loaded: Bench, line: str, prompt: str) -> None:
    loaded.run(line)
    assert loaded.engine.asked[-1][0] == prompt


def test_ask_works_inside_python(loaded: Bench) -> None:
    loaded.run(
        "texts = []\nfor n in range(2):\n    g = %mtplx ask --quiet Why?\n    texts += [g.text]"
    )
    assert loaded.shell.user_ns["texts"] == ["Hello there."] * 2


def test_out_binds_a_second_name(loaded: Bench) -> None:
    result = loaded.run("%%mtplx --out answer\nHi")
    assert loaded.shell.user_ns["answer"] is loaded.shell.user_ns["_mtplx"] is result


def test_stream_off_prints_once_and_markdown_falls_back_to_print(
    loaded: Bench, shown: Shown
) -> None:
    loaded.run("%config MtplxMagics.stream = False")
    loaded.run("%%mtplx --markdown\nHi;")
    assert shown() == "Hello there.\n"


def test_chat_keeps_turns_until_reset(loaded: Bench, shown: Shown) -> None:
    loaded.run("%%mtplx --chat --system 'Be brief.'\nOne")
    loaded.run("%%mtplx --chat\nTwo")
    system = {"role": "system", "content": "Be brief."}
    first = [{"role": "user", "content": "One"}, {"role": "assistant", "content": "Hello there."}]
    assert loaded.engine.asked[-1][0] == [system, *first, {"role": "user", "content": "Two"}]
    shown()
    loaded.run("%mtplx status")
    assert "Conversation: 2 turns of --chat" in shown()
    loaded.run("%mtplx reset")
    assert shown() == "The conversation is forgotten.\n"
    loaded.run("%%mtplx --chat\nThree")
    assert loaded.engine.asked[-1][0] == [{"role": "user", "content": "Three"}]


def test_a_turn_that_did_not_finish_leaves_the_conversation(loaded: Bench) -> None:
    loaded.run("%%mtplx --chat\nOne")
    loaded.engine.answers = [
        Answer(interrupted_after=1),
        Answer(error="NaN logits"),
        Answer(finish=FinishReason.CANCELLED),
    ]
    for prompt in ("Two", "Three", "Four"):
        loaded.run(f"%%mtplx --chat --system changed\n{prompt}")
    loaded.run("%%mtplx --chat\nFive")
    assert [m["content"] for m in loaded.engine.asked[-1][0]] == ["One", "Hello there.", "Five"]


def test_an_interrupt_keeps_the_text_and_fails_the_cell_in_one_line(
    loaded: Bench, shown: Shown
) -> None:
    loaded.engine.answers = [Answer(interrupted_after=1)]
    error = loaded.run("%%mtplx --out g\nHi\n")
    assert isinstance(error, GenerationInterrupted)
    message = "Interrupted after 2 tokens; the partial answer is in _mtplx."
    assert shown() == f"Hello there\n{message}\n"
    partial = loaded.shell.user_ns["_mtplx"]
    assert partial is loaded.shell.user_ns["g"]
    assert (partial.text, partial.finish_reason) == ("Hello there", FinishReason.INTERRUPTED)
    assert isinstance(loaded.run("%%mtplx\nagain"), Generation)


def test_an_interrupt_after_the_last_token_keeps_the_answer(loaded: Bench, shown: Shown) -> None:
    loaded.engine.answers = [Answer(interrupted_after=1, done_before=True)]
    assert isinstance(loaded.run("%%mtplx\nHi"), GenerationInterrupted)
    assert shown() == "Hello\nInterrupted; the answer is complete in _mtplx.\n"
    assert loaded.shell.user_ns["_mtplx"].text == "Hello there."


def test_a_second_interrupt_does_not_wait(loaded: Bench, shown: Shown) -> None:
    loaded.engine.answers = [Answer(interrupted_after=1, stuck=True)]
    assert isinstance(loaded.run("%%mtplx\nHi"), GenerationInterrupted)
    line = "Interrupted; the model is busy with one step and lets go after it."
    assert shown() == f"Hello\n{line}\n"


@pytest.mark.parametrize(
    ("cell", "options"), [("%%mtplx --out g\nHi", {}), ("%mtplx ask --out g Hi", {"stream": False})]
)
def test_text_that_cannot_be_shown_cancels_the_request_and_keeps_what_there_is(
    loaded: Bench, monkeypatch: pytest.MonkeyPatch, cell: str, options: dict[str, bool]
) -> None:
    loaded.installation.magics.stream = options.get("stream", True)
    loaded.engine.answers = [Answer(pieces=("caf", "é", " "), endless=options == {})]
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
        error = loaded.run(cell)
    assert isinstance(error, UnicodeEncodeError)
    kept = loaded.shell.user_ns["_mtplx"]
    assert kept is loaded.shell.user_ns["g"]
    assert kept.text == "café "
    ended = FinishReason.STOP if options else FinishReason.CANCELLED
    assert kept.finish_reason is ended


def test_a_failed_request_is_one_line_and_keeps_what_there_was(loaded: Bench, shown: Shown) -> None:
    loaded.engine.answers = [Answer(pieces=("Hel",), error="NaN logits in layer 3;\nstop")]
    assert isinstance(loaded.run("%%mtplx\nHi"), UsageError)
    assert shown() == "Hel\nUsageError: NaN logits in layer 3; stop\n"
    assert loaded.shell.user_ns["_mtplx"].finish_reason is FinishReason.ERROR


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%%mtplx\n  \n", "the prompt is empty; write one after the options"),
        ("%mtplx ask", "the prompt is empty; write one after the options"),
        ("%mtplx ask;", "the prompt is empty; write one after the options"),
        ("%%mtplx\n;", "the prompt is empty; write one after the options"),
        ("%%mtplx --top-k -1\nHi", "--top-k must be a whole number at least 0, not -1"),
        (
            "%mtplx laod x",
            f"unknown verb 'laod'; did you mean load? allowed: {', '.join(options.VERBS)}",
        ),
        (
            "%mtplx load",
            "which model? %mtplx load NAME; %mtplx models lists the known ones",
        ),
        (
            "%mtplx load a b",
            "one model at a time, quote a path: %mtplx load NAME; "
            "%mtplx models lists the known ones",
        ),
        ("%mtplx mode fast", "--mode must be one of mtp, ar, not 'fast'"),
    ],
)
def test_mistakes_are_one_line(loaded: Bench, shown: Shown, cell: str, message: str) -> None:
    assert isinstance(loaded.run(cell), UsageError)
    assert one_line(shown) == message
    assert loaded.engine.asked == []


@pytest.mark.parametrize("cell", ["%%mtplx\nHi", "%mtplx ask Hi", "%mtplx mode", "%mtplx mode ar"])
def test_without_a_model_the_line_says_how_to_load_one(
    bench: Bench, shown: Shown, cell: str
) -> None:
    bench.run(cell)
    assert one_line(shown) == "no model is loaded; load one: %mtplx load smollm2-135m"


def test_mode_shows_and_sets_the_default_and_reloads_nothing(loaded: Bench, shown: Shown) -> None:
    engine = loaded.engine
    loaded.run("%mtplx mode;")
    loaded.run("%mtplx mode ar")
    assert shown() == "Default mode: mtp\nDefault mode: ar\n"
    assert (loaded.engine, engine.mode, len(loaded.loads)) == (engine, "ar", 1)
    loaded.run("%%mtplx\nHi")
    assert "mode" not in loaded.engine.asked[-1][1]


def test_mode_says_why_a_model_cannot(loaded: Bench, shown: Shown) -> None:
    loaded.engine.mode, loaded.engine.mode_reason = "ar", "its caches cannot be rolled back"
    loaded.run("%mtplx mode")
    assert shown() == "Default mode: ar: its caches cannot be rolled back\n"
    loaded.run("%mtplx mode mtp")
    assert one_line(shown) == "mode mtp cannot be had: its caches cannot be rolled back"


def test_load_says_what_runs(bench: Bench, shown: Shown) -> None:
    bench.loadable["scripted"] = ScriptedEngine()
    assert bench.run("%mtplx load scripted --mode ar --queue-limit 4") is None
    assert bench.loads == [("scripted", {"mode": "ar", "queue_limit": 4})]
    begun, first, *rest = shown().splitlines()
    assert begun == "Loading scripted ..."
    assert first.startswith("Loaded scripted (llama, 135M parameters, float32, context 8192")
    assert rest == [
        "Device:       cpu",
        "BLAS:         reference BLAS, 1 thread: chosen by MTPLX_KERNEL_BLAS=stock;",
        "              products take 3 times as long",
        "Mode:         mtp",
    ]


def test_a_load_that_fails_leaves_the_engine(loaded: Bench, shown: Shown) -> None:
    before = loaded.engine
    loaded.loadable["broken"] = ModelUnusable("broken: no weights")
    loaded.run("%mtplx load broken")
    assert shown() == "Loading broken ...\nUsageError: broken: no weights\n"
    loaded.loadable["slow"] = KeyboardInterrupt()
    assert isinstance(loaded.run("%mtplx load slow"), GenerationInterrupted)
    assert shown() == "Loading slow ...\nInterrupted: scripted is still loaded.\n"
    assert loaded.engine is before
    assert before.closes == []


def test_a_load_closes_the_engine_before_it_once_its_work_is_done(loaded: Bench) -> None:
    before = loaded.engine
    loaded.loadable["other"] = ScriptedEngine("other")
    loaded.run("%mtplx load other")
    assert loaded.engine.name == "other"
    assert before.closes == [True]


def test_an_interrupted_first_load_leaves_none(bench: Bench, shown: Shown) -> None:
    bench.loadable["slow"] = KeyboardInterrupt()
    bench.run("%mtplx load slow")
    assert shown() == "Loading slow ...\nInterrupted: no model is loaded.\n"
    assert bench.engines.current is None


def test_unload(loaded: Bench, shown: Shown) -> None:
    engine = loaded.engine
    loaded.run("%mtplx unload")
    loaded.run("%mtplx unload")
    loaded.run("%mtplx status")
    assert shown() == (
        "Unloaded scripted.\nNo model is loaded.\n"
        "No model is loaded. Load one: %mtplx load smollm2-135m\n"
    )
    assert engine.closes == [False]


def test_an_engine_closed_from_python_counts_as_none(loaded: Bench, shown: Shown) -> None:
    loaded.engine.close()
    loaded.run("%%mtplx\nHi")
    assert one_line(shown) == "no model is loaded; load one: %mtplx load smollm2-135m"


def test_an_engine_that_died_says_so(loaded: Bench, shown: Shown) -> None:
    loaded.engine.state = "dead"
    loaded.run("%mtplx status")
    assert "State:        dead: it is dead" in shown()
    loaded.run("%%mtplx\nHi")
    assert one_line(shown).startswith("the engine takes no requests")


def test_status_reads_well(loaded: Bench, shown: Shown) -> None:
    loaded.run("%%mtplx\nHi;")
    shown()
    assert loaded.run("%mtplx status") is None
    text = shown()
    assert max(len(line) for line in text.splitlines()) <= 78
    assert "Model:        scripted (llama, 135M parameters, float32, context 8192" in text
    assert "Queue:        0 running, 0 waiting, at most 256 may wait\n" in text
    assert "Memory:       550 MB\n" in text
    assert "Last request: stop: 7 prompt tokens, 3 generated\n" in text


@pytest.mark.parametrize(
    "cell", ["%mtplx", "%mtplx help", "%mtplx ask --help", "%%mtplx --help\nx"]
)
def test_help(bench: Bench, shown: Shown, cell: str) -> None:
    bench.run(cell)
    assert shown() == options.help_text() + "\n"


def test_the_docstring_is_the_help(bench: Bench) -> None:
    magic = bench.shell.find_line_magic("mtplx")
    assert magic is not None
    assert magic.__doc__ == options.help_text()


def test_config_shows_sets_and_checks_the_defaults(loaded: Bench, shown: Shown) -> None:
    loaded.run("%config MtplxMagics")
    assert "MtplxMagics.max_tokens=<Int>" in shown()
    magics = loaded.installation.magics
    with pytest.raises(TraitError, match="max_tokens must be a whole number at least 1, not 0"):
        magics.max_tokens = 0
    with pytest.raises(TraitError, match="mode must be one of mtp, ar"):
        magics.mode = "fast"
    magics.mode = "ar"
    assert loaded.engine.mode == "ar"
    loaded.run("%config MtplxMagics.mode = ''")
    assert loaded.engine.mode == "mtp"
    magics.mode = "ar"
    loaded.loadable["other"] = ScriptedEngine("other", mode="ar")
    loaded.run("%mtplx load other")
    assert loaded.loads[-1] == ("other", {"mode": "ar"})
    loaded.engine.mode_reason = "no caches"
    with pytest.raises(TraitError, match="mode mtp cannot be had: no caches"):
        magics.mode = "mtp"
    assert magics.mode == "ar"
    magics.mode = ""
    assert loaded.engine.mode == "ar"
