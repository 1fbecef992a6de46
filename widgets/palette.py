"""The colours of the views by role, light and dark, told apart by colour-blind readers too.

The hues are those of Okabe and Ito, "Color universal design" (2008), darkened or lightened until
they stand out from the ground. No view relies on colour alone: heights or words say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

DEEPEST = 5
"""Drafts at this depth and deeper share a colour."""


@dataclass(frozen=True, slots=True)
class Shade:
    """A role's colours on a light ground and on a dark one, as `#rrggbb`."""

    light: str
    dark: str

    def on(self, *, dark: bool) -> str:
        """The one for a ground."""
        return self.dark if dark else self.light


SHADES: Mapping[str, Shade] = MappingProxyType(
    {
        # The page.
        "ground": Shade("#ffffff", "#16191d"),
        "text": Shade("#1f2328", "#e6e8ea"),
        "muted": Shade("#5b6168", "#a3abb3"),
        "grid": Shade("#d8dce0", "#3a4048"),
        "focus": Shade("#0072b2", "#56b4e9"),
        # A request's life.
        "queued": Shade("#8d949b", "#656d76"),
        "prefill": Shade("#c27f00", "#e69f00"),
        "decode": Shade("#0072b2", "#3f9bd6"),
        "cohort": Shade("#e8eef5", "#202a35"),
        "rate": Shade("#1f2328", "#e6e8ea"),
        "error": Shade("#b23a00", "#ff8a4c"),
        # How a token came; `accepted` stands for every depth.
        "accepted": Shade("#007a58", "#2bbf94"),
        "correction": Shade("#c04f00", "#ff8a4c"),
        "bonus": Shade("#9c4579", "#e08fc0"),
        "plain": Shade("#5b6168", "#a3abb3"),
        "unknown": Shade("#8a9199", "#7a828b"),
        # Who drafted.
        "head": Shade("#0072b2", "#56b4e9"),
        "lookup": Shade("#b87900", "#e6b033"),
        "pool": Shade("#9c4579", "#e08fc0"),
        "grammar": Shade("#007a58", "#2bbf94"),
    }
)

TINTS: Mapping[str, Shade] = MappingProxyType(
    {
        "accepted-1": Shade("#e3f5ee", "#12352b"),
        "accepted-2": Shade("#c9ecdf", "#154537"),
        "accepted-3": Shade("#aee2cf", "#195443"),
        "accepted-4": Shade("#93d8bf", "#1c6450"),
        "accepted-5": Shade("#78ceaf", "#1f7059"),
        "correction": Shade("#ffdcc4", "#5c2b0c"),
        "bonus": Shade("#f5d9e9", "#54263f"),
        "plain": Shade("#eceef0", "#2b3037"),
        "unknown": Shade("#ffffff", "#16191d"),
    }
)
"""Grounds for text in the colour `text`, by how its token came."""

DARK_PAGES = (
    '[data-jp-theme-light="false"]',
    "body.vscode-dark",
    "html[theme=dark]",
)
"""How JupyterLab and Notebook, VS Code, and Colab say that their page is dark."""


def tint(kind: str, depth: int = 0) -> str:
    """The role of a token's ground in `TINTS`.

    Parameters
    ----------
    kind
        How it came: accepted, correction, bonus, plain or unknown.
    depth
        Which draft of its cycle it was, from 1, where it was accepted.
    """
    return f"accepted-{min(max(depth, 1), DEEPEST)}" if kind == "accepted" else kind


def values(*, dark: bool) -> dict[str, str]:
    """Every colour by its CSS name: `--mtplx-ROLE`, and `--mtplx-tint-ROLE` for a text's ground."""
    named = {f"--mtplx-{role}": shade.on(dark=dark) for role, shade in SHADES.items()}
    return named | {f"--mtplx-tint-{role}": shade.on(dark=dark) for role, shade in TINTS.items()}


def css(selector: str = ".mtplx") -> str:
    """The colours as CSS variables of the elements that `selector` names, by the page's theme."""
    dark = ", ".join(f"{page} {selector}" for page in DARK_PAGES)
    return f"{selector} {{ {_block(dark=False)} }}\n{dark} {{ {_block(dark=True)} }}\n"


def _block(*, dark: bool) -> str:
    return " ".join(f"{name}: {colour};" for name, colour in values(dark=dark).items())
