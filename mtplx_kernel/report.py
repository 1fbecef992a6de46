"""Status and model lists as aligned text that reads well aloud and in a narrow window."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mtplx_kernel.scheduling.options import TAKEN, SchedulerMode

if TYPE_CHECKING:
    from mtplx_kernel.engine.timeline import DecodeWindow
    from mtplx_kernel.models.catalog import ModelListing

WIDTH = 78
LABEL_WIDTH = 14
_DOING = ("prefilling", "decoding", "waiting")
"""What a scheduler's block may count of its requests."""


def labelled(rows: Iterable[tuple[str, str]], width: int = WIDTH) -> str:
    """Lines of ``Label: text``, the texts aligned and wrapped."""
    lines: list[str] = []
    for label, text in rows:
        lines += textwrap.wrap(
            text,
            width,
            initial_indent=f"{label + ':':<{LABEL_WIDTH}}",
            subsequent_indent=" " * LABEL_WIDTH,
            break_on_hyphens=False,
            break_long_words=False,
        )
    return "\n".join(lines)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, two spaces apart."""
    widths = [max(len(row[n]) for row in (header, *rows)) for n in range(len(header))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    )


def size(n_bytes: float | None) -> str:
    """Bytes as people say them, in powers of 1000."""
    if n_bytes is None:
        return "unknown"
    for unit in ("B", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} GB"


def count(n: int) -> str:
    """A number of parameters as people say it."""
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= limit:
            return f"{n / limit:.3g}{unit}"
    return str(n)


def models_text(listings: Sequence[ModelListing], loaded: str | None) -> str:
    """The table of ``%mtplx models``."""
    if not listings:
        return "No model is known. Load a local folder or a hub id: %mtplx load PATH_OR_ID"
    rows = [
        (m.name, "yes" if m.cached else "no", size(m.size_bytes), m.licence or "unknown", m.source)
        for m in listings
    ]
    text = table(("NAME", "CACHED", "SIZE", "LICENCE", "SOURCE"), rows)
    last = f"Loaded: {loaded}." if loaded else "None is loaded: %mtplx load NAME."
    return f"{text}\n\n{last}"


def model_line(status: Mapping[str, Any]) -> str:
    """The model of an engine in one line."""
    model = status.get("model", {})
    parts = [str(model[key]) for key in ("family", "precision") if model.get(key)]
    if model.get("parameters"):
        parts.insert(1, f"{count(model['parameters'])} parameters")
    if model.get("context_length"):
        parts.append(f"context {model['context_length']} tokens")
    name = str(model.get("name", "unknown"))
    return f"{name} ({', '.join(parts)})" if parts else name


def mode_line(mode: str, reason: str | None) -> str:
    """The default mode in one line, with the reason where there is one."""
    return f"Default mode: {_with_reason(mode, reason)}"


def running_on(status: Mapping[str, Any]) -> str:
    """What a freshly loaded model runs on, with the reason where it is slow."""
    return labelled(_rows(status, ("Device", "BLAS", "Mode", "Head", "Depth")))


def endpoint_line(url: str, token: bool) -> str:
    """Where the model is served, and whether clients need a token; the token is not shown."""
    return f"{url}, {'with a token' if token else 'without a token'}"


def status_text(
    status: Mapping[str, Any],
    windows: Sequence[DecodeWindow],
    chat_turns: int,
    endpoint: str | None = None,
) -> str:
    """The page of ``%mtplx status``; what an engine does not say of itself has no row."""
    rows = [("Model", model_line(status))]
    path = status.get("model", {}).get("path")
    if path:
        rows.append(("Folder", str(path)))
    rows += _rows(status, _LINES)
    if chat_turns:
        turns = "1 turn" if chat_turns == 1 else f"{chat_turns} turns"
        rows.append(("Conversation", f"{turns} of --chat"))
    if endpoint:
        rows.append(("Endpoint", endpoint))
    rows.append(("Last request", _window_line(windows[-1]) if windows else "none yet"))
    return labelled(rows)


def _rows(status: Mapping[str, Any], labels: Iterable[str]) -> list[tuple[str, str]]:
    rows = [(label, *_LINES[label]) for label in labels]
    return [(label, line(status)) for label, key, line in rows if status.get(key) not in _NOTHING]


def _costs_line(status: Mapping[str, Any]) -> str:
    parts = [f"{ms:.3g} ms for {tokens}" for tokens, ms in status["verify_ms"].items()]
    return _with_reason(", ".join(parts) + " tokens", status.get("costs_from"), "; ")


def _head_line(head: Mapping[str, Any]) -> str:
    details = []
    if head.get("parameters"):
        details.append(f"{count(head['parameters'])} parameters")
    if head.get("bytes"):
        details.append(size(head["bytes"]))
    if head.get("draft_vocabulary"):
        details.append(f"drafts {head['draft_vocabulary']} ids")
    details += [f"{part} {ms:.3g} ms" for part, ms in head.get("ms", {}).items()]
    line = f"{head['name']} ({', '.join(details)})" if details else str(head["name"])
    return f"{line} from {head['source']}" if head.get("source") else line


def _depth_line(status: Mapping[str, Any]) -> str:
    if status.get("mode_reason"):
        return "no drafts"
    depth = status["depth"]
    number = depth.get("default")
    drafts = "1 draft a cycle" if number == 1 else f"{number} drafts a cycle"
    return _with_reason("adaptive" if number is None else drafts, depth.get("reason"))


def _memory_line(status: Mapping[str, Any]) -> str:
    held, budget = size(status["memory_bytes"]), status.get("memory_budget_bytes")
    return f"{held} of {size(budget)}" if budget else held


def _with_reason(value: object, reason: object, between: str = ": ") -> str:
    return f"{value}{between}{reason}" if reason else str(value)


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_plain(item) for item in value)
    return "" if value is None else str(value)


def _caches_line(caches: Mapping[str, Any]) -> str:
    roll = "drafts can be taken back" if caches["rollback"] else "drafts cannot be taken back"
    return _with_reason(roll, caches.get("reason"))


def scheduler_text(status: Mapping[str, Any]) -> str:
    """The page of ``%mtplx scheduler``: the mode in force, its settings, and who runs."""
    return labelled([*_rows(status, ("Scheduler",)), ("Queue", _queue_line(status))])


def _scheduler_line(status: Mapping[str, Any]) -> str:
    scheduler = status["scheduler"]
    mode = str(scheduler["mode"])
    settings = [
        said
        for name, value in scheduler.get("settings", {}).items()
        if name in TAKEN[SchedulerMode(mode)] and (said := _setting(name, value))
    ]
    line = f"{mode} ({', '.join(settings)})" if settings else mode
    block = scheduler.get(mode, {})
    doing = [f"{_waiting(block[key])} {key}" for key in _DOING if block.get(key)]
    if scheduler.get("finishing"):
        doing.append(f"once what runs under {scheduler['finishing']['mode']} has finished")
    return _with_reason(line, ", ".join(doing))


def _setting(name: str, value: Any) -> str:
    if name == "sealed":
        return "sealed" if value else "refill"
    if isinstance(value, bool):
        return ""
    words = name.removesuffix("_ms").replace("_", " ")
    return f"{words} {value:g} ms" if name.endswith("_ms") else f"{words} {value}"


def _waiting(value: Any) -> int:
    """How many; some modes count who waits by key."""
    return sum(value.values()) if isinstance(value, Mapping) else int(value)


def _prefixes_line(cache: Mapping[str, Any]) -> str:
    held = f"{size(cache['bytes'])} of {size(cache['limit_bytes'])}"
    entries = "1 entry" if cache["entries"] == 1 else f"{cache['entries']} entries"
    asked = cache["hits"] + cache["misses"]
    found = f"{cache['hits']} of {asked} prompts began as one before"
    line = f"{entries}, {held}; {found}, {cache['tokens_saved']} tokens saved"
    return _with_reason(line, cache.get("last_error"))


def _queue_line(status: Mapping[str, Any]) -> str:
    queue = status["queue"]
    return (
        f"{status['running']} running, {queue['waiting']} waiting, "
        f"at most {queue['limit']} may wait"
    )


def _window_line(window: DecodeWindow) -> str:
    parts = [
        f"{window.finish_reason or 'running'}: {window.prompt_tokens} prompt tokens",
        f"{window.completion_tokens} generated",
    ]
    if window.first_token is not None:
        parts.append(f"first after {window.first_token - window.submitted:.2f} s")
    if window.decode_tok_s is not None:
        parts.append(f"{window.decode_tok_s:.1f} tokens a second")
    if any(window.drafted_by_depth):
        accepted, drafted = sum(window.accepted_by_depth), sum(window.drafted_by_depth)
        parts.append(f"{accepted} of {drafted} drafts accepted")
    return ", ".join(parts)


_NOTHING: tuple[object, ...] = (None, {}, 0)
"""What stands in a status for a thing that is not known; an empty list is known."""

_LINES: dict[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "State": ("state", lambda s: _with_reason(s["state"], s.get("reason"))),
    "Device": ("device", lambda s: str(s["device"])),
    "BLAS": ("blas", lambda s: _with_reason(s["blas"]["description"], s["blas"].get("reason"))),
    "Mode": ("mode", lambda s: _with_reason(s["mode"], s.get("mode_reason"))),
    "Drafters": ("drafters", lambda s: _plain(s["drafters"]) or "none"),
    "Head": ("head", lambda s: _head_line(s["head"])),
    "No head": ("head_reason", lambda s: str(s["head_reason"])),
    "Depth": ("depth", _depth_line),
    "Verify cost": ("verify_ms", _costs_line),
    "Caches": ("caches", lambda s: _caches_line(s["caches"])),
    "Scheduler": ("scheduler", _scheduler_line),
    "Queue": ("queue", _queue_line),
    "Prefix cache": ("prefix_cache", lambda s: _prefixes_line(s["prefix_cache"])),
    "Memory": ("memory_bytes", _memory_line),
}
"""The rows of a status by label: the key that each needs, and its text."""
