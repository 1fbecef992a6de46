"""A browser and a JupyterLab for each file of tests; without a browser they are skipped.

Not for all: while a browser is open, playwright's event loop runs in the thread of the tests, and
no other test in it could call `asyncio.run`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.ui.lab import Lab


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser."""
    pytest.importorskip("playwright", reason="playwright is not installed: make ui brings it")
    from tests.ui.browser import NoBrowser, browser

    try:
        with browser() as started:
            yield started
    except NoBrowser as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def lab(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A server; the browser comes first, so that none is started in vain."""
    from tests.ui.lab import Lab

    with Lab(Path(tmp_path_factory.mktemp("lab"))) as started:
        yield started
