"""Where the results of `against_transformers` are kept."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).parent / "transformers.npz"
