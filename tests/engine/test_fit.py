"""A depth that was tuned for holds at every load, whether or not costs are known by then."""

from __future__ import annotations

from typing import Any

import pytest

from mtplx_kernel.decoding.depth import CostCurve
from mtplx_kernel.engine import fit as fit_module
from mtplx_kernel.models import measured
from mtplx_kernel.models.measured import Tuned
from tests.engine.conftest import Start


def test_a_tuned_depth_needs_no_kept_measurement(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(measured, "_folder", lambda: tmp_path)
    curve = CostCurve((1, 2, 4), (0.001, 0.0011, 0.0012))
    monkeypatch.setattr(fit_module, "measure_costs", lambda *_, **__: (curve, False))
    first = start()
    assert first.default_depth is None
    measured.keep_tuned(first.measured_key, Tuned(2, when=measured.time.time()))
    second = start()
    assert (second.default_depth, second.measured_key) == (2, first.measured_key)
    assert second.status()["costs_from"] == (
        "measured at this load: the machine was too busy to keep it"
    )
    assert second.status()["depth"] == {"default": 2, "reason": "as %mtplx tune found best"}
    measured.keep_tuned(first.measured_key, None)
    assert start().default_depth is None


def test_and_holds_beside_a_kept_one(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(measured, "_folder", lambda: tmp_path)
    curve = CostCurve((1, 2, 4), (0.001, 0.0011, 0.0012))
    monkeypatch.setattr(fit_module, "measure_costs", lambda *_, **__: (curve, True))
    first = start()
    measured.keep_tuned(first.measured_key, Tuned(3, when=measured.time.time()))
    second = start()
    assert second.status()["costs_from"].startswith("measured here on ")
    assert second.default_depth == 3
