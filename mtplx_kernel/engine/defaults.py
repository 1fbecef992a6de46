"""What holds for requests that name no generation mode or depth of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mtplx_kernel.decoding.params import GenerationMode, SamplingParams
from mtplx_kernel.errors import InvalidRequest

TUNED = "as %mtplx tune found best"
"""Why a tuned depth is in force."""


class Defaults:
    """An engine's defaults, which any thread may read and change.

    Parameters
    ----------
    name
        The model.
    rollback_reason
        Why its caches cannot take tokens back, so that it runs in mode ar only; None where it
        drafts.
    mode
        The mode asked for at launch; None takes mtp where it can be had.
    depth
        The depth that the model was tuned for here; None leaves it to the drafters.

    Raises
    ------
    InvalidRequest
        If the mode cannot be had.
    """

    def __init__(
        self,
        name: str,
        rollback_reason: str | None,
        mode: GenerationMode | None,
        depth: int | None,
    ) -> None:
        self._name = name
        self._reason = rollback_reason
        self.mode = GenerationMode.AR if rollback_reason else GenerationMode.MTP
        self.mode = self.checked(mode)
        self.depth = depth
        self.depth_reason = None if depth is None else TUNED

    @property
    def mode_reason(self) -> str | None:
        """Why mode mtp is not to be had; None where it is."""
        if self._reason is None:
            return None
        return f"{self._name} runs in mode ar only: {self._reason}"

    def checked(self, mode: GenerationMode | None) -> GenerationMode:
        """The mode in force for a request that asks for `mode`."""
        if mode is GenerationMode.MTP and self.mode_reason is not None:
            raise InvalidRequest(f"mode mtp cannot be had: {self.mode_reason}")
        return self.mode if mode is None else mode

    def set_mode(self, mode: str) -> None:
        """Change the mode."""
        self.mode = self.checked(SamplingParams(mode=mode).mode)  # type: ignore[arg-type]

    def set_depth(self, depth: int | None, reason: str | None = None) -> None:
        """Change the depth; None leaves it to the drafters."""
        self.depth = SamplingParams(depth=depth).depth
        self.depth_reason = reason

    def applied(self, params: SamplingParams) -> SamplingParams:
        """A request's options, with the depth in force where it names none."""
        return params if params.depth is not None else replace(params, depth=self.depth)

    def depth_status(self) -> dict[str, Any]:
        """The depth in force, as plain data."""
        return {"default": self.depth, "reason": self.depth_reason}
