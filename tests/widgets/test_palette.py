"""The palette: contrast on both grounds, and hues that colour-blind readers tell apart."""

from __future__ import annotations

import itertools

import pytest

from mtplx_kernel.widgets.palette import SHADES, TINTS, css, tint, values

# Machado, Oliveira and Fernandes (2009): full deuteranopia and protanopia, on linear RGB.
BLIND = {
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
}
DRAWN_TOGETHER = ("queued", "prefill", "decode", "accepted")


def linear(colour: str) -> tuple[float, ...]:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)


def luminance(colour: str) -> float:
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: tuple[float, ...]) -> tuple[float, float, float]:
    """CIE L*a*b* of linear RGB under D65."""
    r, g, b = (min(1.0, max(0.0, c)) for c in rgb)
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def seen(colour: str, kind: str) -> tuple[float, ...]:
    rgb = linear(colour)
    return tuple(sum(w * c for w, c in zip(row, rgb, strict=True)) for row in BLIND[kind])


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable_on_every_ground(dark: bool) -> None:
    text = SHADES["text"].on(dark=dark)
    grounds = [SHADES["ground"].on(dark=dark), SHADES["cohort"].on(dark=dark)]
    grounds += [shade.on(dark=dark) for shade in TINTS.values()]
    assert {ground for ground in grounds if contrast(text, ground) < 4.5} == set()
    assert contrast(SHADES["muted"].on(dark=dark), SHADES["ground"].on(dark=dark)) >= 4.5


@pytest.mark.parametrize("dark", [False, True])
def test_marks_stand_out_from_their_ground(dark: bool) -> None:
    ground = SHADES["ground"].on(dark=dark)
    faint = {"ground", "grid", "cohort"}
    ratios = {role: contrast(s.on(dark=dark), ground) for role, s in SHADES.items()}
    assert {role for role, ratio in ratios.items() if ratio < 3.0} == faint


@pytest.mark.parametrize("kind", list(BLIND))
@pytest.mark.parametrize("dark", [False, True])
def test_colour_blind_readers_tell_apart_what_is_drawn_together(dark: bool, kind: str) -> None:
    """By at least 15 units of CIE 1976; 2.3 is what is just noticed."""
    labs = {r: lab(seen(SHADES[r].on(dark=dark), kind)) for r in DRAWN_TOGETHER}
    apart = {
        (a, b): sum((p - q) ** 2 for p, q in zip(labs[a], labs[b], strict=True)) ** 0.5
        for a, b in itertools.combinations(DRAWN_TOGETHER, 2)
    }
    assert {pair for pair, distance in apart.items() if distance < 15} == set()


def test_deep_drafts_share_a_tint() -> None:
    assert [tint("accepted", d) for d in (1, 4, 5, 16)] == [
        "accepted-1",
        "accepted-4",
        "accepted-5",
        "accepted-5",
    ]
    assert tint("bonus") == "bonus"
    assert {tint(kind, 1) for kind in ("accepted", "correction", "bonus", "plain", "unknown")} <= (
        TINTS.keys()
    )


def test_css_names_every_colour_for_both_themes() -> None:
    light, dark = css(".view").strip().split("\n")
    assert light.startswith(".view {")
    assert dark.startswith('[data-jp-theme-light="false"] .view, body.vscode-dark .view, ')
    for line, named in ((light, values(dark=False)), (dark, values(dark=True))):
        assert len(named) == len(SHADES) + len(TINTS)
        assert all(f"{name}: {colour};" in line for name, colour in named.items())
