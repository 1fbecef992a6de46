"""The magics in real kernels with a real engine: streams, interrupts, exits, notebooks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from mtplx_kernel import options

LIMIT_S = 120
ENDLESS = "%%mtplx --raw --max-tokens 90000"
Message = dict[str, Any]


@dataclass
class Ran:
    """What came of one cell."""

    reply: Message = field(default_factory=dict)
    outputs: list[Message] = field(default_factory=list)

    def text(self, name: str) -> str:
        """All that was printed to a stream."""
        found = [m["content"] for m in self.outputs if m["msg_type"] == "stream"]
        return "".join(c["text"] for c in found if c["name"] == name)

    def contents(self, kind: str) -> list[Message]:
        """The contents of the messages of one kind, in order."""
        return [m["content"] for m in self.outputs if m["msg_type"] == kind]


class Kernel:
    """A kernel that runs cells."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager, self.client = manager, client

    def run(self, source: str, on_output: Callable[[Message], None] = lambda message: None) -> Ran:
        request = self.client.execute(source)
        ran = Ran()
        while True:
            message = self.client.get_iopub_msg(timeout=LIMIT_S)
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["content"].get("execution_state") == "idle":
                break
            ran.outputs.append(message)
            on_output(message)
        ran.reply = self.reply(request)
        return ran

    def reply(self, request: str) -> Message:
        while True:
            message = self.client.get_shell_msg(timeout=LIMIT_S)
            if message["parent_header"]["msg_id"] == request:
                content: Message = message["content"]
                return content

    def value(self, expression: str) -> str:
        (result,) = self.run(expression).contents("execute_result")
        text: str = result["data"]["text/plain"]
        return text

    def printed_in_full(self, name: str, ran: Ran) -> bool:
        """Whether a cell printed the text of a result once, and ended its last line."""
        shown = ran.text("stdout")
        endings = ("", "\n") if shown.endswith("\n") else ()
        return any(self.value(f"{name}.text + {end!r} == {shown!r}") == "True" for end in endings)

    def interrupt_once(self) -> Callable[[Message], None]:
        """For `run`: interrupt at the first text, or progress bar."""
        sent: list[Message] = []

        def on_output(message: Message) -> None:
            if message["msg_type"] in ("stream", "display_data") and not sent:
                sent.append(message)
                self.manager.interrupt_kernel()

        return on_output


def started() -> Kernel:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=LIMIT_S)
    return Kernel(manager, client)


@pytest.fixture(scope="module")
def kernel(tiny_folder: Path) -> Iterator[Kernel]:
    kernel = started()
    ran = kernel.run(f"%load_ext mtplx_kernel\n%mtplx load '{tiny_folder}'")
    assert ran.reply["status"] == "ok", ran
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)


def test_a_cell_streams_text_and_then_shows_stats_once(kernel: Kernel) -> None:
    ran = kernel.run("%%mtplx --max-tokens 30\nWhy is the sky blue?")
    (result,) = ran.contents("execute_result")
    assert result["data"].keys() == {"text/plain", "text/html"}
    assert result["data"]["text/html"].startswith("<details><summary>&lt;length: 30 tokens, ")
    assert result["data"]["text/plain"].startswith("<length: 30 tokens, ")
    assert kernel.printed_in_full("_mtplx", ran)
    assert ran.text("stderr") == ""


def test_both_modes_give_the_same_ids(kernel: Kernel) -> None:
    for mode in ("ar", "mtp"):
        kernel.run(f"%%mtplx --quiet --mode {mode} --max-tokens 40 --out {mode}\nabcabcabc")
    assert kernel.value("(ar.stats.generation_mode, mtp.stats.generation_mode)") == "('ar', 'mtp')"
    assert kernel.value("ar.token_ids == mtp.token_ids") == "True"


def test_quiet_sends_nothing(kernel: Kernel) -> None:
    ran = kernel.run("%%mtplx --quiet --max-tokens 5\nHi")
    assert {m["msg_type"] for m in ran.outputs} <= {"status", "execute_input"}
    assert kernel.value("len(_mtplx.token_ids)") == "5"


def test_a_quiet_result_is_shown_when_it_is_asked_for(kernel: Kernel) -> None:
    ran = kernel.run("g = %mtplx ask --quiet --max-tokens 5 Hi\ng")
    (shown,) = ran.contents("execute_result")
    assert shown["data"]["text/plain"].startswith("<length: 5 tokens, ")
    ran = kernel.run("g = %mtplx ask --max-tokens 5 Hi;")
    assert ran.contents("execute_result") == []
    assert kernel.value("g").startswith("<length: 5 tokens, ")


def test_text_that_cannot_be_shown_frees_the_slot(kernel: Kernel) -> None:
    ran = kernel.run(
        "import io, contextlib\n"
        "with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), 'ascii')):\n"
        "    %mtplx ask --raw --max-tokens 90000 --out unseen Once"
    )
    assert ran.reply["ename"] == "UnicodeEncodeError"
    assert kernel.value("unseen is _mtplx, str(unseen.finish_reason)") == "(True, 'cancelled')"
    assert "0 running, 0 waiting" in kernel.run("%mtplx status").text("stdout")


def test_markdown_is_one_output_that_is_updated(kernel: Kernel) -> None:
    ran = kernel.run("%%mtplx --markdown --max-tokens 300\nHi")
    (first,) = ran.contents("display_data")
    updates = ran.contents("update_display_data")
    ids = {content["transient"]["display_id"] for content in [first, *updates]}
    assert len(ids) == 1
    last = updates[-1]["data"]
    assert last["text/markdown"] == last["text/plain"]
    assert kernel.value(f"_mtplx.text == {last['text/markdown']!r}") == "True"
    assert ran.text("stdout") == ""


def test_an_interrupt_keeps_the_text_and_frees_the_slot(kernel: Kernel) -> None:
    ran = kernel.run(f"{ENDLESS} --out partial\nOnce", kernel.interrupt_once())
    assert (ran.reply["status"], ran.reply["ename"]) == ("error", "GenerationInterrupted")
    (error,) = ran.contents("error")
    tokens = kernel.value("len(partial.token_ids)")
    assert error["traceback"] == [
        f"Interrupted after {tokens} tokens; the partial answer is in _mtplx."
    ]
    assert kernel.value("_mtplx is partial, str(partial.finish_reason)") == "(True, 'interrupted')"
    assert kernel.printed_in_full("partial", ran)
    status = kernel.run("%mtplx status").text("stdout")
    assert "0 running, 0 waiting" in status
    assert "Last request: interrupted: " in status
    assert kernel.run("%%mtplx --max-tokens 5\nagain").reply["status"] == "ok"


def test_an_interrupt_stops_run_all(kernel: Kernel) -> None:
    after: list[str] = []

    def queue_and_interrupt(message: Message) -> None:
        if message["msg_type"] == "stream" and not after:
            after.append(kernel.client.execute("ran_on = True"))
            kernel.manager.interrupt_kernel()

    assert kernel.run(f"{ENDLESS}\nOnce", queue_and_interrupt).reply["status"] == "error"
    assert kernel.reply(after[0])["status"] == "aborted"
    assert kernel.value("'ran_on' in globals()") == "False"


def test_an_interrupted_load_leaves_the_engine(kernel: Kernel, tiny_folder: Path) -> None:
    source = (
        "import _thread, threading, mtplx_kernel as mk\n"
        "before = mk.current()\n"
        "threading.Timer(0.02, _thread.interrupt_main).start()\n"
        f"%mtplx load '{tiny_folder}'"
    )
    ran = kernel.run(source)
    assert ran.reply["status"] == "error"
    assert ran.contents("error")[0]["traceback"] == ["Interrupted: tiny llama is still loaded."]
    assert kernel.value("mk.current() is before and not before.closed") == "True"
    assert kernel.run("%%mtplx --max-tokens 3\nHi").reply["status"] == "ok"


BATCH = "%%mtplx --batch --raw --out both"


def test_a_batch_is_one_output_and_a_line_of_totals(kernel: Kernel) -> None:
    kernel.run("%mtplx scheduler mtp_batch --width 4")
    ran = kernel.run(f"{BATCH} --max-tokens 300\nOne\n---\nTwo\n---\nThree")
    kernel.run("%mtplx scheduler serial")
    assert ran.reply["status"] == "ok", ran.reply
    (first,) = ran.contents("display_data")
    updates = ran.contents("update_display_data")
    ids = {content["transient"]["display_id"] for content in [first, *updates]}
    assert len(ids) == 1
    assert re.match(r"\d of 3 done, \d+ tokens, \d+ s\n\[1\] One \(", first["data"]["text/plain"])
    assert kernel.value(f"both.page == {updates[-1]['data']['text/plain']!r}") == "True"
    (result,) = ran.contents("execute_result")
    assert result["data"]["text/plain"].startswith("<3 requests: 3 complete, 900 tokens in ")
    assert result["data"]["text/html"].startswith("<details><summary>3 requests: 3 complete")
    assert (ran.text("stdout"), ran.text("stderr")) == ("", "")
    assert kernel.value("{g.stats.scheduler_mode for g in both}") == "{'mtp_batch'}"
    kernel.run("%%mtplx --quiet --raw --max-tokens 300 --out alone\nTwo")
    assert kernel.value("both[1].token_ids == alone.token_ids") == "True"


def test_samples_are_what_their_seeds_give_alone(kernel: Kernel) -> None:
    sampled = "--quiet --raw --temperature 1 --max-tokens 20"
    kernel.run(f"%%mtplx --samples 3 --seed 5 {sampled} --out three\nOnce")
    kernel.run(f"%%mtplx --seed 6 {sampled} --out alone\nOnce")
    assert kernel.value("[g.stats.seed for g in three]") == "[5, 6, 7]"
    assert kernel.value("three[1].token_ids == alone.token_ids != three[0].token_ids") == "True"


def test_an_interrupted_batch_keeps_what_there_is(kernel: Kernel) -> None:
    sent: list[Message] = []

    def interrupt_when_one_is_done(message: Message) -> None:
        text = message["content"].get("data", {}).get("text/plain", "")
        if text.startswith("1 of 3 done") and "[2] Two (waits" not in text and not sent:
            sent.append(message)
            kernel.manager.interrupt_kernel()

    kernel.run("%mtplx scheduler ar_batch")
    source = (
        "import mtplx_kernel as mk\n"
        "submit = mk.Engine.submit\n"
        "def short(self, prompt, **options):\n"
        "    options['max_tokens'] = 5 if prompt == 'One' else 90000\n"
        "    return submit(self, prompt, **options)\n"
        "mk.Engine.submit = short"
    )
    kernel.run(source)
    ran = kernel.run(f"{BATCH}\nOne\n---\nTwo\n---\nThree", interrupt_when_one_is_done)
    kernel.run("mk.Engine.submit = submit\n%mtplx scheduler serial")
    assert ran.contents("error")[0]["traceback"] == [
        "Interrupted: 1 of 3 answers are complete; they and what there is of the others are in "
        "_mtplx."
    ]
    reasons = "['length', 'interrupted', 'interrupted']"
    assert kernel.value("[str(g.finish_reason) for g in both]") == reasons
    assert kernel.value("both is _mtplx and all(len(g.token_ids) > 1 for g in both)") == "True"
    assert "0 running, 0 waiting" in kernel.run("%mtplx status").text("stdout")


def test_a_switch_under_load_loses_nothing(kernel: Kernel) -> None:
    kernel.run(
        "handles = [mk.current().submit('Once', raw=True, max_tokens=200) for _ in range(3)]"
    )
    ran = kernel.run("%mtplx scheduler mtp_batch --width 2")
    shown = "Switching to mtp_batch ...\nScheduler:    mtp_batch (width 2, "
    assert ran.text("stdout").startswith(shown)
    kernel.run("texts = {h.result().text for h in handles}")
    assert kernel.value("len(texts), mk.current().scheduler") == "(1, 'mtp_batch')"
    ran = kernel.run("%mtplx scheduler --sealed")
    assert "width 2, " in ran.text("stdout")
    assert "sealed, itl" in ran.text("stdout")
    kernel.run("%mtplx scheduler serial")


def test_a_mistake_is_one_line_and_an_error(kernel: Kernel) -> None:
    ran = kernel.run("%%mtplx --temprature 1\nHi")
    assert ran.reply["ename"] == "UsageError"
    assert ran.text("stderr").startswith("UsageError: unknown option '--temprature'; did you mean")
    assert ran.text("stderr").strip().count("\n") == 0


def test_checks_show_a_page_and_leave_the_model_free(kernel: Kernel) -> None:
    ran = kernel.run("%mtplx verify --prompts 1 --max-tokens 4 --draws 2")
    (result,) = ran.contents("execute_result")
    assert result["data"]["text/plain"].startswith("verified: 2 of 2 answers equal")
    assert "<strong>verified: 2 of 2 answers equal" in result["data"]["text/html"]
    ran = kernel.run("%mtplx tune --prompts 1 --max-tokens 18 --max-depth 1 --no-keep")
    (result,) = ran.contents("execute_result")
    assert result["data"].keys() == {"text/plain", "text/html", "image/png"}
    assert (
        '<img alt="Bar chart of tiny llama, times the speed of mode ar. ar: 1.00; '
        in (result["data"]["text/html"])
    )
    assert ran.text("stderr") == ""


def test_an_interrupted_check_is_one_line(kernel: Kernel) -> None:
    ran = kernel.run("%mtplx tune --max-tokens 50000", kernel.interrupt_once())
    assert ran.contents("error")[0]["traceback"] == [
        "Interrupted: the depth in force is as before."
    ]
    assert "0 running, 0 waiting" in kernel.run("%mtplx status").text("stdout")


def test_tab_and_help(kernel: Kernel) -> None:
    request = kernel.client.complete("%mtplx sta", 10)
    assert kernel.reply(request)["matches"] == ["status"]
    (page,) = kernel.run("%mtplx?").reply["payload"]
    assert all(line in page["data"]["text/plain"] for line in options.help_text().splitlines())


def test_unload_ext_ends_the_thread_and_the_kernel_exits_by_itself(tiny_folder: Path) -> None:
    kernel = started()
    try:
        kernel.run("import threading\nbefore = set(threading.enumerate())")
        kernel.run(f"%load_ext mtplx_kernel\n%mtplx load '{tiny_folder}'")
        assert kernel.value("len(set(threading.enumerate()) - before) > 0") == "True"
        kernel.run("import mtplx_kernel as mk\nengine = mk.current()\n%unload_ext mtplx_kernel")
        assert kernel.value("engine.closed, mk.current()") == "(True, None)"
        assert kernel.value("[t.name for t in set(threading.enumerate()) - before]") == "[]"
        kernel.run(f"%load_ext mtplx_kernel\n%mtplx load '{tiny_folder}'")
        kernel.run("%reload_ext mtplx_kernel")
        assert kernel.value("mk.current() is None") == "True"
        kernel.run(f"%mtplx load '{tiny_folder}'")
        process = kernel.manager.provisioner.process  # type: ignore[union-attr]
        kernel.client.shutdown()
        assert process.wait(timeout=LIMIT_S) == 0
    finally:
        kernel.client.stop_channels()
        kernel.manager.shutdown_kernel(now=True)


def notebook(*cells: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in cells],
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}
        },
    )


def test_nbclient(tiny_folder: Path) -> None:
    ran = notebook(
        "%load_ext mtplx_kernel",
        f"%mtplx load '{tiny_folder}'",
        "%%mtplx --markdown --max-tokens 5\nHi",
        "%mtplx ask --max-tokens 5 Is this a question?",
        "%%mtplx --batch --markdown --max-tokens 5\nHi\n---\nHo",
        "%%mtplx --top-p 2\nHi",
    )
    with pytest.raises(CellExecutionError, match="--top-p must be a number above 0 and at most 1"):
        NotebookClient(ran, timeout=LIMIT_S, coalesce_streams=True).execute()
    kinds = [[out.output_type for out in cell.outputs] for cell in ran.cells]
    assert kinds[2] == ["display_data", "execute_result"]
    assert kinds[3] == ["stream", "execute_result"]
    assert kinds[4] == ["display_data", "execute_result"]
    page = ran.cells[4].outputs[0].data["text/markdown"]
    assert page.startswith("**\\[1\\] Hi (5 tokens, ")
    assert kinds[5] == ["stream"]


def test_papermill(tiny_folder: Path, tmp_path: Path) -> None:
    template = notebook(
        "topic = 'nothing'\nmodel = 'nothing'",
        "%load_ext mtplx_kernel\n%mtplx load '{model}'\n%mtplx ask --quiet --max-tokens 2 Hi",
        '%%mtplx --vars topic --max-tokens 5 --out g\n{topic}: {"json": [1]}',
        "g.stats.prompt_tokens",
    )
    template.cells[0].metadata["tags"] = ["parameters"]
    source, target = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    nbformat.write(template, source)
    counts = []
    for topic in ("a", "abcdefghij"):
        papermill.execute_notebook(
            os.fspath(source),
            os.fspath(target),
            {"topic": topic, "model": os.fspath(tiny_folder)},
            progress_bar=False,
        )
        ran = nbformat.read(target, as_version=4)
        assert {out.output_type for out in ran.cells[2].outputs} == {"stream"}
        assert "Loaded tiny llama (llama, " in "".join(out.text for out in ran.cells[2].outputs)
        counts.append(int(ran.cells[-1].outputs[0].data["text/plain"]))
    # The tiny tokenizer makes one token of a byte.
    assert counts[1] - counts[0] == 9
