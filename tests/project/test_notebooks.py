"""The notebooks run, their committed outputs are of a real run, and the demo prints them."""

from __future__ import annotations

import io
import json
import os
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
    ran = [(c.execution_count, kinds(c)) for c in fresh.cells if c.cell_type == "code"]
    kept = [(c.execution_count, kinds(c)) for c in committed.cells if c.cell_type == "code"]
    assert kept == ran, "run `make notebooks` and commit the result"
    assert [count for count, _ in ran] == list(range(1, len(ran) + 1))
    for count, _ in ran:
        assert f"In [{count}]: " in printed.getvalue()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_committed_notebook_names_no_machine(path: Path) -> None:
    text = path.read_text()
    assert not [place for place in PLACES if place in text]
    assert '"stderr"' not in text
    assert set(json.loads(text)["metadata"]) == {"kernelspec", "language_info"}


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
    endless = new_code_cell("import time\nprint('ready', flush=True)\ntime.sleep(600)")
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
