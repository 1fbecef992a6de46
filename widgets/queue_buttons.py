"""A button for each of the oldest open requests, which cancels it, and one for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets as ipw

from mtplx_kernel.widgets.desk import OpenRequest
from mtplx_kernel.widgets.subshell import heard_while_busy

BUTTONS = 8
AT_ONCE = 3
"""Most buttons whose text changes at a time: each change is a message."""


@dataclass(slots=True)
class Button:
    """A button, and the request that it stands for now."""

    widget: Any
    request: OpenRequest | None = None
    rested: bool = True
    """Whether nobody can still be pressing it for the request before."""


class QueueButtons:
    """Buttons that are used again and again, however many requests come and go.

    A button keeps its request until that ends, and is then gone for a while before it stands for
    another: nobody cancels a request because it took the place of the one that they meant.

    Parameters
    ----------
    cancel
        Called with the id of the request to cancel, None for all.

    Attributes
    ----------
    box
        The widget to display.
    """

    def __init__(self, cancel: Callable[[str | None], None]) -> None:
        self._buttons = [Button(_button()) for _ in range(BUTTONS)]
        self.all = _button("Cancel all", disabled=True)
        self.all.on_click(lambda _: cancel(None))
        for button in self._buttons:
            button.widget.on_click(lambda _, button=button: _press(button, cancel))
        self.box = ipw.Box(
            [self.all], layout={"display": "flex", "flex_flow": "row wrap", "width": "100%"}
        )

    @property
    def shown(self) -> list[Any]:
        """The buttons that stand for a request, oldest first."""
        return [button.widget for button in self._buttons if button.request is not None]

    def show(self, requests: Sequence[OpenRequest]) -> None:
        """Follow the open requests, oldest first."""
        left = {request.request_id: request for request in requests}
        changed = 0
        free = []
        for button in self._buttons:
            now = left.pop(button.request.request_id, None) if button.request else None
            if button.request is None and button.rested:
                free.append(button)
            if now is None:
                button.rested = button.request is None
                button.request = None
            elif now != button.request and changed < AT_ONCE:
                changed += 1
                _name(button, now)
        for button, request in zip(free, left.values(), strict=False):
            if changed == AT_ONCE:
                break
            changed += 1
            _name(button, request)
        children = (*self.shown, self.all)
        if self.box.children != children:
            self.box.children = children
        if self.all.disabled is not (not requests):
            self.all.disabled = not requests

    def close(self) -> None:
        """Take all buttons away, those too that are not shown."""
        for widget in (*(button.widget for button in self._buttons), self.all):
            for part in (widget.layout, widget.style, widget):
                part.close()


def _name(button: Button, request: OpenRequest) -> None:
    button.request = request
    button.widget.description = f"Cancel {request.request_id} ({request.doing})"


def _press(button: Button, cancel: Callable[[str | None], None]) -> None:
    if button.request is not None:
        cancel(button.request.request_id)


def _button(description: str = "", *, disabled: bool = False) -> Any:
    return heard_while_busy(
        ipw.Button(
            description=description,
            disabled=disabled,
            layout={"width": "auto", "max_width": "100%"},
        )
    )
