"""What ``%mtplx show`` can show, and its options."""

from __future__ import annotations

from mtplx_kernel.grammar import Option

ALL, OFF, REQUEST = "all", "off", "request"
VIEWS = ("timeline", "acceptance", REQUEST, "controls")
SHOWN = (*VIEWS, ALL, OFF)

LIVE = Option(
    "--live",
    None,
    "",
    "keep views live while nothing runs too, to point at and to zoom, until show off",
)
SHOW_OPTIONS = (LIVE,)
