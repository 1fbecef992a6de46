"""What a request is told of one of its tokens: plain data, no MLX."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was in its place, and which ids were likeliest there.

    Log-probabilities are natural logarithms of the model's softmax at temperature 1, after the
    request's logit_bias and penalties, before its temperature, top-p, min-p and top-k. So they are
    the same in every mode, and a token that is always drawn need not have 0.

    Attributes
    ----------
    top
        (id, log-probability) of as many ids as were asked for, the likeliest first; of equal ones
        the lower id first. Ids that the model rules out are never among them.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
