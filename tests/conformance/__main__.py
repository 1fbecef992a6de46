"""`python -m tests.conformance`: serve models, let the suites ask, print one table and keep it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conformance import page, strain
from tests.conformance.catalogue import NODE, REAL, ROOT, SUITES, TINY, Suite
from tests.conformance.environment import NO_NPM, has_npm, prepare
from tests.conformance.load import Target
from tests.conformance.outcome import Outcome, of_report
from tests.conformance.page import Row
from tests.conformance.serving import serving
from tests.conformance.wishes import CONTEXT
from tests.tiny import write

LOAD, FUZZ = "load", "fuzz"
STRAINS: dict[str, Callable[[str, int], tuple[Outcome, tuple[str, ...]]]] = {
    LOAD: strain.under_load,
    FUZZ: strain.under_fuzz,
}
LONGEST_S = 3600


def main() -> int:
    """Run the suites; 1 if anything failed."""
    names = [*(suite.name for suite in SUITES), *STRAINS]
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--only", action="append", choices=names, help="may be repeated")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of load and fuzz")
    wanted = parser.parse_args()
    chosen = wanted.only or names
    print(f"seed {wanted.seed}", flush=True)
    if any(suite.name in chosen for suite in SUITES):
        prepare()
    with TemporaryDirectory() as folder:
        places = {
            REAL: REAL,
            TINY: str(write("llama", Path(folder) / "short" / TINY)),
            # Room for a prompt that is too long for it, and for many at once.
            LOAD: str(write("llama", Path(folder) / TINY, max_position_embeddings=CONTEXT)),
        }
        rows = list(_run_suites([each for each in SUITES if each.name in chosen], places))
        for name in (name for name in STRAINS if name in chosen):
            place = places[LOAD] if name == LOAD else places[TINY]
            outcome, notes = STRAINS[name](place, wanted.seed)
            rows.append(Row(name, "our own", TINY, outcome, notes=notes))
    print(page.page(rows))
    if not wanted.only:
        page.write(rows)
    return int(any(row.outcome.failures for row in rows))


def _run_suites(suites: Iterable[Suite], places: dict[str, str]) -> Iterable[Row]:
    """Each model is served once, to its suites one after the other."""
    suites = list(suites)
    for model in (REAL, TINY):
        mine = [suite for suite in suites if suite.model == model]
        if not mine:
            continue
        with serving(places[model], "--scheduler-mode", "cooperative") as served:
            for suite in mine:
                left_out = tuple(f"{part}: {why}" for part, why in suite.left_out.items())
                print(f"== {suite.name}", flush=True)
                outcome = _run(suite, served.target)
                yield Row(suite.name, suite.version, model, outcome, left_out)


def _run(suite: Suite, target: Target) -> Outcome:
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = suite.command(target, report)
        if command[0] == str(NODE) and not has_npm():
            return Outcome(0, skipped=Counter([NO_NPM]))
        environment = {
            **os.environ,
            "OPENAI_BASE_URL": f"{target.url}/v1",
            "OPENAI_API_KEY": target.token,
            "ENDPOINT_MODEL": target.model,
            "SCHEMATHESIS_HOOKS": "tests.conformance.suites.described",
            "PYTHONPATH": str(ROOT),
        }
        done = subprocess.run(command, cwd=folder, env=environment, timeout=LONGEST_S, check=False)
        if not report.exists():
            return Outcome(0, (f"no report: the runner ended with code {done.returncode}",))
        outcome = of_report(report)
    if done.returncode != 0 and not outcome.failures:
        told = f"the runner ended with code {done.returncode}, and its report tells of no failure"
        return Outcome(outcome.passed, (told,), outcome.skipped)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
