"""What the commands that go on until they are told to stop share: which model, loaded how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtplx_kernel import options
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.grammar import Option

LAUNCH_OPTIONS = (
    Option("--model", str, "NAME", "the model, where MODEL is not given before the options"),
    Option(
        "--scheduler-mode",
        str,
        "NAME",
        "how requests share the model; serial if not given",
        values=options.SCHEDULERS,
    ),
    Option("--no-mtp", None, "", "the default mode is ar: no drafts"),
    *(option for option in options.LOAD_OPTIONS if option.flag != "--scheduler"),
)


def chosen(words: Sequence[str], given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Take what is about loading out of a command's options.

    Returns
    -------
    tuple of str and dict
        The name of the model, and the keywords of `mtplx_kernel.load`.

    Raises
    ------
    InvalidRequest
        For options that exclude each other.
    """
    loading = {o.name: given.pop(o.name) for o in LAUNCH_OPTIONS if o.name in given}
    model = loading.pop("model", None)
    if words and model is not None:
        raise InvalidRequest("MODEL and --model exclude each other: they name the same thing")
    if loading.pop("no_mtp", False):
        if "mode" in loading:
            raise InvalidRequest("--mode and --no-mtp exclude each other")
        loading["mode"] = "ar"
    if "scheduler_mode" in loading:
        loading["scheduler"] = loading.pop("scheduler_mode")
    name = words[0] if words else model or options.FIRST_MODEL
    return name, options.scheduler_settings(loading)
