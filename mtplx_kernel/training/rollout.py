"""Text that a model writes by itself: many rows in lockstep, one token a row and step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from mtplx_kernel.models.target import Target
from mtplx_kernel.training.attention import many_rows
from mtplx_kernel.training.base import compiled
from mtplx_kernel.training.roles import Roles

USER_TEMPERATURE = 0.8
LONGEST_USER_TURN = 80
"""A user message that the model invents is cut here: small models may not end theirs."""
STEPS_AHEAD = 4
"""How many steps may be queued: enough to keep a GPU busy, few enough to bound memory."""


@dataclass(frozen=True, slots=True)
class Start:
    """How one row begins.

    Attributes
    ----------
    ids
        Its first tokens.
    answering
        Whether the model's next token belongs to an answer, not to a user message.
    temperature
        Of its answers; 0 takes the likeliest. User messages have a temperature of their own.
    """

    ids: list[int]
    answering: bool = True
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Rolled:
    """Rows of text.

    Attributes
    ----------
    tokens
        int32, shape (rows, length).
    sampled
        uint8, shape (rows, length): 1 where the model chose the token as part of an answer.
    """

    tokens: mx.array
    sampled: mx.array


def roll(
    target: Target,
    starts: Sequence[Start],
    length: int,
    *,
    roles: Roles | None,
    key: mx.array,
    ahead: int = STEPS_AHEAD,
    tick: Callable[[int], object] = lambda step: None,
) -> Rolled:
    """Let a model write.

    Parameters
    ----------
    target
        The model.
    starts
        One a row.
    length
        Tokens of each row, its start included; longer starts are cut.
    roles
        What follows when a message ends; None lets every row run on as it likes.
    key
        Of the random numbers, which `step_noise` makes.
    ahead
        How many steps may be queued.
    tick
        Called with the number of each finished step.
    """
    rows = len(starts)
    prefix = _prefixes(starts, length)
    caches = make_prompt_cache(target.model)
    for cache in caches:
        if type(cache) is KVCache:
            cache.step = length  # all room at once, not by copies
    advance, keys = _advance(roles), mx.random.split(key, length)
    heat = mx.array([[USER_TEMPERATURE, start.temperature] for start in starts])
    state = [
        mx.array([int(s.answering or roles is None) for s in starts], mx.int32),
        mx.zeros((rows,), mx.int32),
        mx.zeros((rows,), mx.int32),
    ]
    token, chosen = prefix[:, 0], mx.zeros((rows,), mx.uint8)
    tokens, sampled = [token], [chosen]
    with many_rows(target.model):
        for n in range(length - 1):
            hidden = target.forward(token[:, None], caches)
            logits = target.logits(hidden[:, -1])
            token, chosen, *state = advance(logits, keys[n], heat, prefix[:, n + 1], *state)
            tokens.append(token)
            sampled.append(chosen)
            mx.async_eval(token, chosen, state)
            if n >= ahead:
                mx.eval(tokens[n + 1 - ahead])
            tick(n)
    rolled = Rolled(mx.stack(tokens, axis=1), mx.stack(sampled, axis=1))
    mx.eval(rolled.tokens, rolled.sampled)
    return rolled


def step_noise(key: mx.array, shape: Sequence[int]) -> mx.array:
    """The Gumbel noise that chooses a step's tokens, float32, one number an id.

    Adding it, times the temperature, to logits and taking the largest samples from their softmax at
    that temperature. The key of the token after position n is `mx.random.split(key, length)[n]`.
    """
    return mx.random.gumbel(shape, key=key)


def _prefixes(starts: Sequence[Start], length: int) -> mx.array:
    """The rows' first tokens, shape (rows, length), -1 after them."""
    table = [(start.ids + [-1] * length)[:length] for start in starts]
    return mx.array(table, mx.int32)


def _advance(roles: Roles | None) -> Callable[..., Any]:
    """One step of all rows, without a look at any of them from the host.

    A row's state is its role (0 user, 1 answer), how far it is into the switch to the other role
    (0: it is not), and how long its message is.
    """
    if roles is None:
        return compiled(_free)
    width = max(len(roles.to_answer.ids), len(roles.to_user.ids)) + 1
    switches = [roles.to_answer, roles.to_user]
    table = mx.array([list(s.ids) + [0] * (width - len(s.ids)) for s in switches], mx.int32)
    sizes = mx.array([len(s.ids) for s in switches], mx.int32)
    skips = mx.array([s.skip for s in switches], mx.int32)
    ends = mx.array(roles.ends, mx.int32)
    mx.eval(table, sizes, skips, ends)

    def advance(
        logits: mx.array,
        key: mx.array,
        heat: mx.array,
        forced: mx.array,
        role: mx.array,
        place: mx.array,
        count: mx.array,
    ) -> tuple[mx.array, ...]:
        own = _choose(logits, key, mx.where(role == 1, heat[:, 1], heat[:, 0]))
        flat = table.reshape(-1)
        switching = place > 0
        # `place` is one more than the index of the switch's next token.
        index = mx.maximum(place - 1, 0)
        cut = (role == 0) & (count >= LONGEST_USER_TURN) & ~switching
        index = mx.where(cut, 0, index)
        scripted = switching | cut
        written = mx.take(flat, role * width + index)
        given = forced >= 0
        token = mx.where(given, forced, mx.where(scripted, written, own))
        free = ~given & ~scripted
        ended = free & (token[:, None] == ends).any(axis=1)
        following = mx.where(ended, mx.take(skips, role), index + 1)
        moving = ended | (scripted & ~given)
        done = moving & (following >= mx.take(sizes, role))
        sampled = (free & (role == 1)).astype(mx.uint8)
        place = mx.where(moving & ~done, following + 1, 0)
        count = mx.where(moving, 0, count + free.astype(mx.int32))
        role = mx.where(done, 1 - role, role)
        return token, sampled, role, place, count

    return compiled(advance)


def _free(
    logits: mx.array,
    key: mx.array,
    heat: mx.array,
    forced: mx.array,
    role: mx.array,
    place: mx.array,
    count: mx.array,
) -> tuple[mx.array, ...]:
    own = _choose(logits, key, heat[:, 1])
    token = mx.where(forced >= 0, forced, own)
    return token, (forced < 0).astype(mx.uint8), role, place, count


def _choose(logits: mx.array, key: mx.array, heat: mx.array) -> mx.array:
    noise = step_noise(key, logits.shape)
    return mx.argmax(logits + heat[:, None] * noise, axis=-1).astype(mx.int32)
