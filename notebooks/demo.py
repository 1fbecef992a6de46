"""Runs a notebook without a browser and prints what its reader would see, as it happens."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parent
QUICK_START = FOLDER / "01_quickstart.ipynb"
CELL_LIMIT_S = 900
"""The first load downloads a model, so one cell may take minutes on a slow line."""
PLACES = {str(FOLDER.parent): "."} | ({f"{Path.home()}/": "~/"} if Path.home().name else {})
"""This machine's folders and what they are called in a committed notebook."""
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class PrintingClient(NotebookClient):
    """Executes a notebook in its own kernel and prints cells and outputs while they arrive.

    Parameters
    ----------
    notebook
        The notebook; its outputs are replaced.
    sink
        Where to print; None prints nothing.
    """

    def __init__(self, notebook: NotebookNode, sink: TextIO | None = None) -> None:
        # The environment's own kernel, not one that a user's folder has under the same name.
        os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")
        super().__init__(
            notebook,
            timeout=CELL_LIMIT_S,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(FOLDER)}},
        )
        self.sink = sink
        self.interrupted = False
        self.on_cell_start = self._begin

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> Any:
        """Take one kernel message, and print it if it carries an output."""
        self._print(_text_of(msg["msg_type"], msg["content"]))
        return super().process_message(msg, cell, cell_index)

    def _begin(self, cell: NotebookNode, cell_index: int) -> None:
        # nbclient would tear the kernel down under the running cell; interrupt it instead.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt)
        self._print("\n")
        if cell.cell_type == "markdown":
            self._print(_wrapped(cell.source) + "\n")
        elif cell.cell_type == "code":
            prompt = f"In [{self.code_cells_executed + 1}]: "
            lines = textwrap.indent(cell.source, " " * len(prompt))
            self._print(prompt + lines[len(prompt) :] + "\n")

    def _interrupt(self) -> None:
        assert isinstance(self.km, AsyncKernelManager)
        self.interrupted = True
        self._stopping = asyncio.ensure_future(self.km.interrupt_kernel())

    def _print(self, text: str) -> None:
        if self.sink is not None:
            self.sink.write(text)
            self.sink.flush()


def _text_of(kind: str, content: dict[str, Any]) -> str:
    if kind == "stream":
        return str(content["text"])
    if kind == "execute_result":
        return f"Out[{content['execution_count']}]: {content['data'].get('text/plain', '')}\n"
    if kind == "display_data":
        return f"{content['data'].get('text/plain', '')}\n"
    if kind == "error":
        return ANSI.sub("", "\n".join(content["traceback"])) + "\n"
    return ""


def _wrapped(markdown: str) -> str:
    """Markdown as terminal text: paragraphs filled, headings underlined, lists and code as is."""
    blocks = []
    for block in markdown.strip().split("\n\n"):
        if block.startswith("#"):
            title = block.lstrip("# ")
            blocks.append(f"{title}\n{'=' * len(title)}")
        elif block.startswith(("-", "|", "```", "    ")):
            blocks.append(block)
        else:
            blocks.append(textwrap.fill(" ".join(block.split()), 88))
    return "\n\n".join(blocks)


def settle(notebook: NotebookNode) -> NotebookNode:
    """Make an executed notebook fit to be committed: no machine's paths, no progress bar frames."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = _settled(output.text)
            elif "data" in output:
                for mime, value in output.data.items():
                    if isinstance(value, str) and mime.startswith("text/"):
                        output.data[mime] = _settled(value)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def _settled(text: str) -> str:
    for place, name in PLACES.items():
        text = text.replace(place, name)
    return "\n".join(line.rsplit("\r", 1)[-1] for line in text.split("\n"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the notebooks named on the command line (the quick start if none is); 0 is success."""
    parser = argparse.ArgumentParser(prog="demo.py", description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, default=[QUICK_START])
    parser.add_argument("--save", action="store_true", help="keep the outputs in the notebook")
    options = parser.parse_args(arguments)
    for path in options.notebooks:
        notebook = nbformat.read(path, as_version=4)
        client = PrintingClient(notebook, sys.stdout)
        try:
            client.execute()
        except CellExecutionError:
            what = "was interrupted" if client.interrupted else "failed"
            print(f"{path.name}: the cell above {what}", file=sys.stderr)
            return 130 if client.interrupted else 1
        if options.save:
            nbformat.write(settle(notebook), path)
    if options.notebooks == [QUICK_START]:
        print(
            "This was notebooks/01_quickstart.ipynb. Open it in JupyterLab and change it: make lab"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
