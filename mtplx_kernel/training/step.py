"""One training step, compiled: from a batch to new parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten

from mtplx_kernel.heads.distilled import DistilledHead, output_rows
from mtplx_kernel.training import optimiser
from mtplx_kernel.training.base import Base, compiled
from mtplx_kernel.training.features import Batch
from mtplx_kernel.training.loss import divergence, likely, slope, teach, total
from mtplx_kernel.training.optimiser import Arrays, Rates
from mtplx_kernel.training.unroll import unroll

DEPTH_WEIGHT = 0.8
"""Each depth counts for so much of the one before: it is reached less often."""
PROBE_ERROR = 0.02


class Step:
    """What trains a head.

    Parameters
    ----------
    base
        The model.
    head
        The head; its own parameters are not used, but those that are passed in.
    depth
        How many passes are trained.
    rates
        Of the optimiser.
    aim
        Temperature of the decoding whose acceptance is to rise.
    """

    def __init__(
        self, base: Base, head: DistilledHead, depth: int, rates: Rates, aim: float = 1.0
    ) -> None:
        self._base, self._head, self._depth, self._rates = base, head, depth, rates
        self._aim = aim
        self._dtype = base.dtype
        rows = output_rows(base.target.shared.output, head.vocabulary)
        self._rows = {k: v.astype(base.dtype) for k, v in rows.items()}
        self._plain = self._is_plain()
        self._quick = compiled(lambda *arrays: self._step(False, *arrays))
        self._reporting = compiled(lambda *arrays: self._step(True, *arrays))

    def __call__(
        self,
        parameters: Arrays,
        state: Arrays,
        batch: Batch,
        heat: float,
        late: bool,
        report: bool,
    ) -> tuple[Arrays, Arrays, mx.array]:
        """Take one step.

        Returns
        -------
        tuple
            New parameters and optimiser state, and the figures: float32 of shape (2, depth), the
            chance of acceptance and, for a report, the KL at each depth.
        """
        run: Callable[..., Any] = self._reporting if report else self._quick
        made: tuple[Arrays, Arrays, mx.array] = run(
            parameters,
            state,
            batch.lower,
            batch.final,
            self._base.target.shared.embed(batch.tokens),
            batch.sampled,
            batch.normaliser,
            mx.array(heat),
            mx.array(late),
        )
        return made

    def losses(
        self,
        parameters: Arrays,
        lower: mx.array,
        final: mx.array,
        embedded: mx.array,
        sampled: mx.array,
        normaliser: mx.array,
        late: mx.array,
        report: bool,
    ) -> tuple[mx.array, mx.array]:
        """A number whose gradient is the loss's, and the figures."""
        depth, pairs = self._depth, final.shape[1] - 1 - self._depth
        cast = [(name, a.astype(self._dtype)) for name, a in parameters.items()]
        self._head.update(tree_unflatten(cast))
        features = mx.concatenate([lower, final], axis=-1)[:, :pairs]
        states = unroll(self._head, features, lambda d, _: embedded[:, d : d + pairs], depth)
        # Positions come first, so that the rows of a depth are one slice without a copy.
        taught = self._teach(_by_position(final), _by_position(normaliser))
        mass, rows = total(taught), final.shape[0]
        value, alphas, kls = mx.array(0.0), [], []
        for d, made in enumerate(states, 1):
            flat = _by_position(made)
            part = slice(d * rows, (d + pairs) * rows)
            weights = _by_position(sampled[:, d + 1 : d + 1 + pairs]).astype(mx.float32)
            fixed = mx.stop_gradient(flat)
            found = slope(self._rows, fixed, taught[part], mass[part], weights, late, self._aim)
            gradient = mx.stop_gradient(found.gradient)
            value = value + DEPTH_WEIGHT ** (d - 1) * (flat.astype(mx.float32) * gradient).sum()
            alphas.append(found.alpha)
            kls.append(
                divergence(self._rows, fixed, taught[part], weights) if report else mx.array(0.0)
            )
        return value, mx.stop_gradient(mx.stack([mx.stack(alphas), mx.stack(kls)]))

    def _step(
        self,
        report: bool,
        parameters: Arrays,
        state: Arrays,
        lower: mx.array,
        final: mx.array,
        embedded: mx.array,
        sampled: mx.array,
        normaliser: mx.array,
        heat: mx.array,
        late: mx.array,
    ) -> tuple[Arrays, Arrays, mx.array]:
        def losses(chosen: Arrays) -> tuple[mx.array, mx.array]:
            return self.losses(chosen, lower, final, embedded, sampled, normaliser, late, report)

        (_, figures), gradients = mx.value_and_grad(losses)(parameters)
        parameters, state = optimiser.update(
            parameters, gradients, state, heat, self._rates, self._dtype
        )
        return parameters, state, figures

    def _teach(self, final: mx.array, normaliser: mx.array) -> mx.array:
        if self._plain:
            return teach(self._rows, final, normaliser)
        logits = self._base.target.logits(final)[:, self._head.vocabulary]
        return likely(logits, normaliser).astype(self._dtype)

    def _is_plain(self) -> bool:
        """Whether the model's logits are the bare product with its output rows."""
        states = self._base.target.forward(mx.array([[1, 0, 2, 3]]), None)[0]
        whole = self._base.target.logits(states)[:, self._head.vocabulary]
        bare = (states @ self._rows["weight"].T).astype(mx.float32)
        if "bias" in self._rows:
            bare = bare + self._rows["bias"]
        return bool(mx.abs(whole - bare).max() <= PROBE_ERROR * mx.abs(whole).max() + 1e-3)


def _by_position(x: mx.array) -> mx.array:
    """From (rows, positions, ...) to (positions * rows, ...)."""
    swapped = x.swapaxes(0, 1)
    return swapped.reshape(-1, *swapped.shape[2:])
