"""Views in the outputs of cells: at most one of a kind is open, and each ends as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.display import DisplayHandle

    from mtplx_kernel.widgets.controls import Controls

Bundle = Callable[[], Mapping[str, Any]]


class View(Protocol):
    """What stands in an output."""

    def show(self) -> None:
        """Display it in the output of the cell that runs."""

    def close(self) -> None:
        """Leave a picture or a table in its place, and end what kept it up to date."""


@dataclass(frozen=True, slots=True)
class Sight:
    """Something to look at.

    Attributes
    ----------
    kind
        One of `mtplx_kernel.show_options.VIEWS`.
    live
        Makes a view for somebody who watches.
    bundle
        What stands for it where nobody does, by MIME type.
    text
        The same for a terminal.
    version
        Another value than before wherever the bundle may be another one.
    """

    kind: str
    live: Callable[[], View]
    bundle: Bundle
    text: Callable[[], str]
    version: Callable[[], object]


class Still:
    """A picture, renewed at the end of each cell that changed it: nobody watches meanwhile.

    Parameters
    ----------
    shell
        Whose cells they are.
    bundle, version
        Of what it is a picture of; see `Sight`, of which the rest, and the engine with it, is not
        kept alive.
    """

    def __init__(
        self, shell: InteractiveShell, bundle: Bundle, version: Callable[[], object]
    ) -> None:
        self._shell, self._bundle, self._look = shell, bundle, version
        self._handle: DisplayHandle | None = None
        self._version: object = None

    def show(self) -> None:
        """Display it in the output of the cell that runs."""
        from IPython.display import DisplayHandle

        self._version = self._look()
        self._handle = DisplayHandle()
        self._handle.display(dict(self._bundle()), raw=True)
        self._shell.events.register("post_run_cell", self._renew)

    def close(self) -> None:
        """Renew it no more."""
        if self._handle is not None:
            self._handle = None
            self._shell.events.unregister("post_run_cell", self._renew)

    def _renew(self, _: object) -> None:
        version = self._look()
        if self._handle is not None and version != self._version:
            self._version = version
            self._handle.update(dict(self._bundle()), raw=True)


class ControlsView:
    """Controls in an output, live until they are closed, and then a table.

    Parameters
    ----------
    make
        Makes the controls.
    bundle
        Makes what takes their place.
    """

    def __init__(self, make: Callable[[], Controls], bundle: Bundle) -> None:
        self._make, self._bundle = make, bundle
        self._controls: Controls | None = None
        self._handle: DisplayHandle | None = None

    def show(self) -> None:
        """Display them in the output of the cell that runs."""
        from IPython.display import DisplayHandle

        self._controls, self._handle = self._make(), DisplayHandle()
        self._handle.display(self._controls.box)

    def close(self) -> None:
        """Leave a table in their place."""
        controls, self._controls = self._controls, None
        if controls is not None and self._handle is not None:
            self._handle.update(dict(self._bundle()), raw=True)
            controls.close()


class Views:
    """Those that are open in one shell.

    Parameters
    ----------
    shell
        In whose outputs they stand.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._open: dict[str, View] = {}

    @property
    def kinds(self) -> list[str]:
        """What is open."""
        return list(self._open)

    def show(self, sight: Sight) -> None:
        """Show it as fits who reads: as text, as a picture, or live; the one before is closed."""
        if getattr(self._shell, "kernel", None) is None:
            print(sight.text())
            return
        if (before := self._open.pop(sight.kind, None)) is not None:
            before.close()
        if is_watched(self._shell):
            view = sight.live()
        else:
            view = Still(self._shell, sight.bundle, sight.version)
        view.show()
        self._open[sight.kind] = view

    def close(self) -> None:
        """Close all."""
        while self._open:
            self._open.popitem()[1].close()


def is_watched(shell: InteractiveShell) -> bool:
    """Whether somebody watches the cell that runs."""
    from mtplx_kernel.models.progress import watches

    kernel = getattr(shell, "kernel", None)
    return kernel is not None and watches(kernel)
