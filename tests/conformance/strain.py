"""The load and the fuzz as suites: what they found, with the figures of the process that served."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from tests.conformance.fuzz import fuzz
from tests.conformance.load import load
from tests.conformance.outcome import Outcome
from tests.conformance.serving import NoCleanStop, Served, serving
from tests.conformance.watching import Taken, growth, memory_of
from tests.conformance.wishes import wishes

CLIENTS, SECONDS = 64, 60.0
WISHES = 24
MOST_GROWTH = 0.05
"""How much more memory the last quarter of the load may take than the second."""
REQUESTS = 10_000
WIDTH = 8
QUEUE = 48
"""Fewer than the clients, so that some find the queue full."""
PLAIN = {"MTPLX_KERNEL_BLAS": "stock"}
"""Arithmetic that does not depend on who shares a product: equal is equal, bit for bit."""


def under_load(model: str, seed: int) -> tuple[Outcome, tuple[str, ...]]:
    """Serve a model to a crowd for a minute, then stop it; the outcome and its figures."""
    options = ["--scheduler-mode", "mtp_batch", "--width", str(WIDTH), "--queue-limit", str(QUEUE)]
    found: Any = None
    faults: list[str] = []
    notes: list[str] = []
    try:
        with serving(model, *options, "--prefix-cache-mb", "8", **PLAIN) as served:
            found, noted, before, after = asyncio.run(_load(served, seed))
    except NoCleanStop as error:
        faults.append(str(error))
    if found is None:
        return Outcome(0, tuple(faults)), ()
    grown = growth(noted)
    faults += [*found.faults]
    if grown > MOST_GROWTH:
        faults.append(f"memory grew by {grown:.1%}, and {MOST_GROWTH:.0%} is the most")
    if after.threads != before.threads or after.files != before.files:
        faults.append(f"threads and open files were {before} and are {after}")
    did = ", ".join(f"{kind} {count:,}" for kind, count in found.counts.most_common())
    notes.append(f"{CLIENTS} clients for {SECONDS:g} s, seed {seed} (busy: status 503): {did}")
    notes.append(f"{found.tokens:,} tokens in answers that were compared with the same alone")
    notes.append(
        f"memory {noted[0]:.0f} MB at the start, at most {max(noted):.0f} MB; the last quarter "
        f"took {grown:+.1%} beside the second; threads {before.threads} and {after.threads}, "
        f"open files {before.files} and {after.files}"
    )
    done = found.counts.total() - found.counts["busy"]
    return Outcome(done, tuple(faults)), tuple(notes)


async def _load(served: Served, seed: int) -> tuple[Any, list[float], Taken, Taken]:
    """Threads are counted when all that there will be have been started, and at the end."""
    target, pid = served.target, served.process.pid
    pool = wishes(target.model, WISHES, seed)
    await load(target, pool, clients=CLIENTS, seconds=1, seed=seed + 1)
    await asyncio.sleep(1)
    before = Taken.of(pid)
    async with memory_of(pid) as noted:
        found = await load(target, pool, clients=CLIENTS, seconds=SECONDS, seed=seed)
    await asyncio.sleep(1)
    return found, noted, before, Taken.of(pid)


def under_fuzz(model: str, seed: int) -> tuple[Outcome, tuple[str, ...]]:
    """Send odd requests to a model that is served; the outcome and its figures."""
    faults: list[str] = []
    statuses: Counter[int] = Counter()
    try:
        with serving(model, "--scheduler-mode", "cooperative", **PLAIN) as served:
            found = asyncio.run(fuzz(served.target, requests=REQUESTS, seed=seed))
            faults, statuses = found.faults, found.statuses
    except NoCleanStop as error:
        faults.append(str(error))
    told = ", ".join(f"{status or 'none'} {n:,}" for status, n in sorted(statuses.items()))
    note = f"{REQUESTS:,} requests, seed {seed}; by status (none: the request broke off): {told}"
    return Outcome(statuses.total(), tuple(faults)), (note,)
