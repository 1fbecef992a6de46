"""%mtplx show in a real kernel: live where somebody watches, a picture where nobody does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.ipython.test_kernel import LIMIT_S, Kernel, Message, started

WIDGET = "application/vnd.jupyter.widget-view+json"
STILL = {"image/png", "text/html", "text/plain"}


@pytest.fixture(scope="module")
def kernel(tiny_folder: Path) -> Iterator[Kernel]:
    kernel = started()
    kernel.run(f"%load_ext mtplx_kernel\n%mtplx load '{tiny_folder}'\nimport mtplx_kernel as mk")
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)


@pytest.fixture(autouse=True)
def _nothing_shown(kernel: Kernel) -> Iterator[None]:
    yield
    kernel.run("%mtplx show off")
    names = kernel.value("sorted(t.name for t in __import__('threading').enumerate())")
    assert "mtplx-view" not in names
    assert "mtplx-controls" not in names
    assert kernel.value("len(__import__('ipywidgets').widgets.widget._instances)") == "0"


def shown(outputs: list[Message]) -> list[dict[str, Any]]:
    return [m["content"]["data"] for m in outputs if m["msg_type"] == "display_data"]


@pytest.mark.parametrize("what", ["timeline", "acceptance", "request"])
def test_a_view_is_live_and_then_a_picture(kernel: Kernel, what: str) -> None:
    kernel.run("%%mtplx --raw --quiet --max-tokens 12\nabcabcabc")
    ran = kernel.run(f"%mtplx show {what} --live")
    (data,) = shown(ran.outputs)
    assert WIDGET in data
    ran = kernel.run("%mtplx show off")
    assert ran.text("stdout") == f"No longer followed: {what}.\n"
    (update,) = ran.contents("update_display_data")
    assert update["data"].keys() == STILL


def test_at_rest_a_view_is_a_picture_at_once(kernel: Kernel) -> None:
    kernel.run("%%mtplx --raw --quiet --max-tokens 12\nabcabcabc")
    (data,) = shown(kernel.run("%mtplx show timeline").outputs)
    assert data.keys() == STILL


def test_a_view_is_live_while_something_runs(kernel: Kernel) -> None:
    kernel.run("handle = mk.current().submit('Once', raw=True, max_tokens=90_000)")
    (data,) = shown(kernel.run("%mtplx show timeline").outputs)
    assert WIDGET in data
    kernel.run("handle.cancel(); handle.wait()")


def test_controls_are_live_and_then_a_table(kernel: Kernel) -> None:
    (data,) = shown(kernel.run("%mtplx show controls").outputs)
    assert WIDGET in data
    assert "mtplx-controls" in kernel.value(
        "sorted(t.name for t in __import__('threading').enumerate())"
    )
    ran = kernel.run("%mtplx show off")
    (update,) = ran.contents("update_display_data")
    assert update["data"].keys() == {"text/html", "text/plain"}
    assert "Scheduler: serial" in update["data"]["text/plain"]


def test_what_a_cell_changes_the_controls_show(kernel: Kernel) -> None:
    kernel.run("%mtplx show controls")
    kernel.run("controls = get_ipython().magics_manager.registry['MtplxMagics']")
    field = "controls.views._open['controls']._controls.scheduler.value"
    assert kernel.value(field) == "'serial'"
    kernel.run("%mtplx scheduler cooperative")
    kernel.run(
        "import time\n"
        "for _ in range(400):\n"
        f"    if {field} == 'cooperative': break\n"
        "    time.sleep(0.05)"
    )
    assert kernel.value(field) == "'cooperative'"
    kernel.run("%mtplx scheduler serial")


def test_showing_it_again_closes_the_one_before(kernel: Kernel) -> None:
    kernel.run("%mtplx show timeline --live")
    ran = kernel.run("%mtplx show timeline --live")
    (update,) = ran.contents("update_display_data")
    assert update["data"].keys() == STILL


def test_unload_leaves_pictures_and_nothing_running(tiny_folder: Path) -> None:
    kernel = started()
    try:
        kernel.run(f"%load_ext mtplx_kernel\n%mtplx load '{tiny_folder}'")
        before = kernel.value("sorted(get_ipython().events.callbacks['post_run_cell'], key=str)")
        kernel.run("%%mtplx --raw --quiet --max-tokens 12\nabcabcabc")
        kernel.run("%mtplx show all --live")
        ran = kernel.run("%unload_ext mtplx_kernel")
        assert ran.reply["status"] == "ok"
        updates = ran.contents("update_display_data")
        assert len(updates) == 4
        names = kernel.value("sorted(t.name for t in __import__('threading').enumerate())")
        assert "mtplx" not in names
        after = kernel.value("sorted(get_ipython().events.callbacks['post_run_cell'], key=str)")
        assert after == before
    finally:
        kernel.client.stop_channels()
        kernel.manager.shutdown_kernel(now=True)


def test_a_notebook_that_nobody_watches_has_pictures(tiny_folder: Path, tmp_path: Path) -> None:
    sources = [
        f"%load_ext mtplx_kernel\n%mtplx load '{tiny_folder}'",
        "%mtplx show all",
        "%%mtplx --raw --max-tokens 12\nabcabcabc",
        "%mtplx show request",
    ]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(
        notebook,
        timeout=LIMIT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    timeline, acceptance, controls = (output.data for output in notebook.cells[1].outputs)
    for data in (timeline, acceptance):
        assert data.keys() == STILL
    assert controls.keys() == {"text/html", "text/plain"}
    # They were shown before anything ran, and were renewed once it had.
    assert "req-1" in timeline["text/plain"]
    (request,) = notebook.cells[3].outputs
    assert request.data.keys() == STILL
    assert "widgets" not in notebook.metadata
    assert not [o for cell in notebook.cells for o in cell.outputs if o.output_type == "error"]
