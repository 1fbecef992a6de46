"""A JupyterLab of its own, with settings of its own, for as long as a test needs it."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import nbformat

START_S = 120
STOP_S = 20
SETTINGS = {
    # Cells outside the window are drawn too, so that all can be looked at.
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "completer-extension/inline-completer": {"providers": {}},
}
"""By extension: nothing is asked of a website, and nothing is asked of the user."""


class Lab:
    """A server, used as a context.

    Parameters
    ----------
    folder
        Where notebooks lie, and settings beside them.
    dark
        Whether its pages are dark.

    Attributes
    ----------
    url
        Where it is reached.
    """

    def __init__(self, folder: Path, *, dark: bool = False) -> None:
        self._root = folder / "notebooks"
        self._root.mkdir(parents=True)
        theme = "JupyterLab Dark" if dark else "JupyterLab Light"
        settings = SETTINGS | {"apputils-extension/themes": {"theme": theme}}
        for name, values in settings.items():
            place = folder / "config" / "lab" / "user-settings" / "@jupyterlab" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.with_suffix(".jupyterlab-settings").write_text(json.dumps(values))
        self._token = secrets.token_hex(16)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "lab.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1"),
                    *(f"--port={port}", "--ServerApp.port_retries=0", "--allow-root"),
                    f"--IdentityProvider.token={self._token}",
                    f"--ServerApp.root_dir={self._root}",
                    "--LabApp.expose_app_in_browser=True",
                ],
                cwd=folder,
                env=_environment(folder),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, with its kernels."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_S)

    def write(self, name: str, cells: list[str]) -> None:
        """Put a notebook there."""
        code = [nbformat.v4.new_code_cell(source) for source in cells]
        notebook = nbformat.v4.new_notebook(cells=code)
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(notebook, self._root / name)

    def read(self, name: str) -> nbformat.NotebookNode:
        """A notebook as it was saved."""
        return nbformat.read(self._root / name, as_version=4)

    def save(self, name: str, notebook: nbformat.NotebookNode) -> None:
        """Put a notebook there with the outputs that it has; this Lab does not trust them."""
        nbformat.write(notebook, self._root / name)

    def address(self, name: str) -> str:
        """Where a notebook opens, alone in its window."""
        return f"{self.url}/lab/tree/{name}?token={self._token}&reset"

    def end_kernels(self) -> None:
        """Shut all kernels down, as the user can from the list of what runs."""
        with httpx.Client(
            base_url=self.url, headers={"Authorization": f"token {self._token}"}, timeout=STOP_S
        ) as client:
            for session in client.get("/api/sessions").json():
                client.delete(f"/api/sessions/{session['id']}")

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                answer = httpx.get(f"{self.url}/api?token={self._token}", timeout=STOP_S)
            except httpx.TransportError:
                time.sleep(0.2)
                continue
            if answer.status_code == 200:
                return
        raise RuntimeError(f"JupyterLab did not start:\n{self._log.read_text()[-3000:]}")


def _environment(folder: Path) -> dict[str, str]:
    """Without the user's own settings, and with the arithmetic that a user's kernel has."""
    own = {
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_PREFER_ENV_PATH": "1",
    }
    kept = {name: value for name, value in os.environ.items() if name != "MTPLX_KERNEL_BLAS"}
    return kept | own
