"""Where what the user does with a widget is heard."""

from __future__ import annotations

from typing import Any


def heard_while_busy(widget: Any) -> Any:
    """Have a widget's messages handled at once where front end and kernel know subshells.

    JupyterLab sends them to a subshell, which is free while a cell runs. ipykernel 7.4 passes them
    on to the shell that the widget has last sent something from, where the cell is in the way;
    without the attribute that says which, they stay where they were sent.

    Parameters
    ----------
    widget
        One that was just made; it is given back.
    """
    if widget.comm is not None:
        widget.comm._reply_subshell_for = None
    return widget
