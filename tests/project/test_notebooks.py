"""The notebooks run, their committed outputs are of a real run, and the demo prints them."""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import signal
from pathlib import Path

import nbformat
import pytest
from demo import FOLDER, PLACES, PrintingClient, settle
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def kinds(cell: nbformat.NotebookNode) -> list[str]:
    """What a cell put out, without the words: `stream:stdout`, `execute_result`, ...

    A first load shows the progress of a download on stderr, a later one does not.
    """
    found = {":".join([o.output_type, o.get("name", "")]) for o in cell.outputs}
    return sorted(found - {"stream:stderr"})


MACHINE = ("Device", "BLAS", "Model", "Folder", "Memory", "Verify cost", "Last request")
"""Rows of a status whose text is the machine's, or the last answer's."""


def labels(cell: nbformat.NotebookNode) -> list[str]:
    """What the project's own words in a cell's outputs are, with what a machine decides masked.

    These are the lines that a `%mtplx` verb prints, and the stats of an answer. The answers
    themselves differ with a machine's rounding, and are left out.
    """
    found: list[str] = []
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stdout":
            if re.match(r"(?m)(?:.*\n)*?%mtplx (?!ask)", cell.source):
                found += _lines(output.text)
        elif output.get("data", {}).get("text/plain", "").startswith("<"):
            found.append(re.sub("^<(stop|length):", "<end:", _masked(output.data["text/plain"])))
    return found


def _lines(text: str) -> list[str]:
    # Rows of a table begin in lower case: which models there are is the machine's affair.
    lines = [
        line for line in _masked(re.sub(r"\n +", " ", text)).splitlines() if line[:1].isupper()
    ]
    return [
        next((label for label in MACHINE if line.startswith(f"{label}:")), line) for line in lines
    ]


def _masked(text: str) -> str:
    text = re.sub(r"b?float\d+", "float", text)
    return re.sub(r" +", " ", re.sub(r"\d+(\.\d+)?", "#", text))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs_and_its_committed_outputs_are_of_such_a_run(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MTPLX_KERNEL_BLAS", raising=False)
    committed = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    printed = io.StringIO()
    PrintingClient(fresh, printed).execute()
    settle(fresh)
    ran, kept = (
        [(c.execution_count, kinds(c), labels(c)) for c in book.cells if c.cell_type == "code"]
        for book in (fresh, committed)
    )
    assert kept == ran, "run `make notebooks` and commit the result"
    assert [count for count, _, _ in ran] == list(range(1, len(ran) + 1))
    for count, _, _ in ran:
        assert f"In [{count}]: " in printed.getvalue()


def said(source: str, text: str) -> list[str]:
    return labels(new_code_cell(source, outputs=[nbformat.v4.new_output("stream", text=text)]))


def test_labels_tell_an_old_status_from_a_new_one_and_not_two_machines() -> None:
    here = (
        "Model:        smollm2-135m (llama, 135M parameters, float32, context 8192\n"
        "              tokens)\nBLAS:         OpenBLAS 0.3.34 SkylakeX, 2 threads\n"
        "Mode:         mtp\nScheduler:    serial (open requests 0, ended requests 7)\n"
        "Memory:       550 MB\n"
    )
    there = (
        "Model:        smollm2-135m (llama, 135M parameters, bfloat16, context 8192 tokens)\n"
        "BLAS:         Accelerate: slow for a\n              reason\n"
        "Mode:         mtp\nScheduler:    serial (open requests 0, ended requests 12)\n"
        "Memory:       1.1 GB\n"
    )
    scheduler = "Scheduler: serial (open requests #, ended requests #)"
    assert said("%mtplx status", here) == ["Model", "BLAS", "Mode: mtp", scheduler, "Memory"]
    assert said("%mtplx status", there) == said("%mtplx status", here)
    for old in ("Memory:       550 MB\n", ", ended requests 7", "mtp"):
        assert said("%mtplx status", here.replace(old, "")) != said("%mtplx status", here)


def test_labels_of_other_outputs() -> None:
    models = "NAME          CACHED  SIZE\nsmollm2-135m  yes     102 MB\n\nNone is loaded: x.\n"
    assert said("# what is there\n%mtplx models", models) == [
        "NAME CACHED SIZE",
        "None is loaded: x.",
    ]
    loaded = "Loaded smollm2-135m (llama, float32) in 7.1 s.\n"
    assert said("%mtplx load smollm2-135m", loaded) == ["Loaded smollm#-#m (llama, float) in # s."]
    assert said("%%mtplx\nSay %mtplx status", "The answer: 42.\n") == []
    assert said("%mtplx ask Hi", "The answer: 42.\n") == []
    stats = "<length: 40 tokens, 19.4 tok/s, first after 0.24 s, mode mtp, 1.14 tokens a cycle>"
    result = nbformat.v4.new_output("execute_result", data={"text/plain": stats})
    assert labels(new_code_cell("answer", outputs=[result])) == [
        "<end: # tokens, # tok/s, first after # s, mode mtp, # tokens a cycle>"
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_committed_notebook_names_no_machine(path: Path) -> None:
    text = path.read_text()
    assert not [place for place in PLACES if place in text]
    assert '"stderr"' not in text
    assert set(json.loads(text)["metadata"]) == {"kernelspec", "language_info"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_committed_outputs_need_no_kernel_and_hold_no_noise(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            words = output.get("text") or output.get("evalue")
            forms = output.get("data", {"text/plain": words})
            assert "application/vnd.jupyter.widget-view+json" not in forms, cell.source
            assert forms.get("text/plain"), cell.source
            said = " ".join(text for form, text in forms.items() if form.startswith("text/"))
            assert not re.search(r"\w*Warning|\d%\||\dit/s|<IPython", said), cell.source


def tokens_in(outputs: str) -> list[str]:
    """Words of a token's length, those within pictures aside."""
    drawn = len(secrets.token_urlsafe(32))
    words = re.sub(r"(base64,|\"image/png\": \")[\w+/=\\]+", "", outputs)
    return re.findall(rf"(?<![\w-])[\w-]{{{drawn}}}(?![\w-])", words)


def test_a_token_is_found_beside_a_picture() -> None:
    token = secrets.token_urlsafe(32)
    outputs = {"image/png": "A" * 43 + "+", "text/html": f"<img src='data:;base64,{'B' * 43}'>"}
    assert tokens_in(json.dumps(outputs)) == []
    assert tokens_in(json.dumps(outputs | {"text/plain": f"token {token}"})) == [token]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_committed_notebook_holds_no_token(path: Path) -> None:
    outputs = json.dumps([cell.get("outputs") for cell in json.loads(path.read_text())["cells"]])
    assert not tokens_in(outputs)


def test_demo_prints_sources_and_outputs_in_order() -> None:
    notebook = new_notebook(
        cells=[
            new_markdown_cell("# Title\n\nTwo lines\nmake one."),
            new_code_cell("for word in 'ab':\n    print(word)"),
            new_code_cell("1 + 1"),
        ]
    )
    printed = io.StringIO()
    PrintingClient(notebook, printed).execute()
    assert printed.getvalue() == (
        "\nTitle\n=====\n\nTwo lines make one.\n"
        "\nIn [1]: for word in 'ab':\n            print(word)\na\nb\n"
        "\nIn [2]: 1 + 1\nOut[2]: 2\n"
    )


def test_demo_shows_the_error_of_a_failing_cell() -> None:
    printed = io.StringIO()
    client = PrintingClient(new_notebook(cells=[new_code_cell("1 / 0")]), printed)
    with pytest.raises(CellExecutionError):
        client.execute()
    assert "ZeroDivisionError: division by zero" in printed.getvalue()


class InterruptingSink(io.StringIO):
    """Presses Ctrl-C when a cell says that it is ready."""

    def write(self, text: str) -> int:
        if text == "ready\n":
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


def test_demo_stops_at_the_cell_that_is_interrupted() -> None:
    printed = InterruptingSink()
    # An interrupt that comes just before a sleep is seen at its end, so the sleeps are short.
    again = "import time\nwhile True:\n    print('ready', flush=True)\n    time.sleep(5)"
    endless = new_code_cell(again)
    client = PrintingClient(new_notebook(cells=[endless, new_code_cell("'never'")]), printed)
    with pytest.raises(CellExecutionError):
        client.execute()
    assert client.interrupted
    assert "KeyboardInterrupt" in printed.getvalue()
    assert "never" not in printed.getvalue()


def test_settled_outputs_hold_no_paths_and_no_progress_frames() -> None:
    cell = new_code_cell("")
    cell.outputs = [
        nbformat.v4.new_output("stream", text=f"10%\r50%\r100%\n{Path.home()}/models\n"),
        nbformat.v4.new_output("execute_result", data={"text/plain": f"'{ROOT}/docs'"}),
    ]
    notebook = settle(
        new_notebook(
            cells=[cell], metadata={"language_info": {"name": "python", "version": "3.99"}}
        )
    )
    assert notebook.metadata.language_info == {"name": "python"}
    assert cell.outputs[0].text == "100%\n~/models\n"
    assert cell.outputs[1].data["text/plain"] == "'./docs'"
