"""The head that comes with the default model: it is there, it fits, its card tells its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx

from mtplx_kernel.models.blas import OPT_OUT_VARIABLE
from mtplx_kernel.models.head import SHIPPED

FOLDER = SHIPPED / "smollm2-135m"
MOST_BYTES = 12_000_000


def test_its_files_are_small_and_carry_their_licence() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == [
        "LICENSE",
        "README.md",
        "head.safetensors",
        "metrics.json",
    ]
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MOST_BYTES
    assert "Apache License" in (FOLDER / "LICENSE").read_text().splitlines()[1]


def test_it_is_of_the_stated_size() -> None:
    arrays = mx.load(str(FOLDER / "head.safetensors"))
    assert isinstance(arrays, dict)
    whole = sum(a.size for a in arrays.values() if a.dtype == mx.bfloat16)
    packed = sum(4 * a.size for a in arrays.values() if a.dtype == mx.uint32)
    assert (packed, whole + packed) == (3 * 576 * 3072, 7_856_640)
    (ids,) = [a for a in arrays.values() if a.dtype == mx.int32]
    assert ids.size == len(set(ids.tolist())) == 16_384  # type: ignore[arg-type]


def test_the_card_shows_what_was_measured() -> None:
    card = (FOLDER / "README.md").read_text()
    metrics = json.loads((FOLDER / "metrics.json").read_text())
    assert metrics["model"] == "smollm2-135m"
    assert [(e["temperature"], e["columns"]) for e in metrics["evaluation"]] == [
        (t, n) for t in (0.0, 0.8) for n in (4096, 8192, 16_384)
    ]
    for found in metrics["evaluation"]:
        scores = found["overall"]
        acceptance = " ".join(f"{x:.3f}" for x in scores["acceptance"])
        rates = " ".join(f"{x:.2f}" for x in scores["tokens_a_cycle"])
        row = f"| {found['temperature']} | {found['columns']:,} | {acceptance} | {rates} |"
        assert row in card


ASK = """
import json
import mtplx_kernel as mk
with mk.load("smollm2-135m") as engine:
    status = engine.status()
    question = "Name three colours."
    drafted = engine.generate(question, max_tokens=16, mode="mtp", depth=3)
    plain = engine.generate(question, max_tokens=16, mode="ar")
print(json.dumps({
    "source": status["head"]["source"],
    "drafters": status["drafters"],
    "drafted": drafted.token_ids,
    "plain": plain.token_ids,
    "offered": drafted.stats.drafted_by_depth,
    "accepted": drafted.stats.accepted_by_depth,
}))
"""


def test_the_default_model_drafts_with_it() -> None:
    # In a process of its own, with the BLAS that a user has: the plain one takes half a minute.
    environment = {k: v for k, v in os.environ.items() if k != OPT_OUT_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found["source"]) == FOLDER / "head.safetensors"
    assert found["drafters"] == ["head", "lookup"]
    # OpenBLAS rounds by the number of rows: at the first tokens the two largest are far apart.
    assert len(found["drafted"]) == len(found["plain"]) == 16
    assert found["drafted"][:4] == found["plain"][:4]
    assert found["offered"][0] >= found["accepted"][0] > 0
