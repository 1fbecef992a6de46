"""Conversations that a model writes by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step

from mtplx_kernel.training import rollout
from mtplx_kernel.training.base import Base
from mtplx_kernel.training.roles import Roles, find_roles
from mtplx_kernel.training.rollout import Rolled, Start, roll
from tests import tiny

START, END = 256, 257


def ids(text: str) -> list[int]:
    return list(tiny.tokenizer().encode(text).ids)


PROMPT = ids("<|start|>user\nHow are you?<|end|>\n<|start|>assistant\n")
OPENING = ids("<|start|>user\nHow")


def write(base: Base, roles: Roles | None, starts: list[Start], length: int, seed: int) -> Any:
    rolled = roll(base.target, starts, length, roles=roles, key=mx.random.key(seed))
    return np.array(rolled.tokens), np.array(rolled.sampled)


def test_roles_of_a_template(roles: Roles) -> None:
    assert roles.opening == "<|start|>user\n"
    assert roles.system == "<|start|>system\nqzSYSTEMqz<|end|>\n<|start|>user\n"
    assert list(roles.to_answer.ids) == ids("<|end|>\n<|start|>assistant\n")
    assert list(roles.to_user.ids) == ids("<|end|>\n<|start|>user\n")
    assert (roles.to_answer.skip, roles.to_user.skip, roles.ends) == (1, 1, (END,))


def test_a_model_without_a_template_has_no_roles(base: Base) -> None:
    class Bare:
        chat_template = None

    assert find_roles(Bare(), base.end_ids) is None


def test_greedy_rows_are_what_mlx_lm_decodes(base: Base) -> None:
    tokens, sampled = write(base, None, [Start(PROMPT), Start(OPENING)], 60, 0)
    for row, prompt in enumerate((PROMPT, OPENING)):
        count = 60 - len(prompt)
        steps = generate_step(mx.array(prompt), base.target.model, max_tokens=count)
        assert tokens[row, : len(prompt)].tolist() == prompt
        assert tokens[row, len(prompt) :].tolist() == [int(token) for token, _ in steps]
        assert sampled[row].tolist() == [0] * len(prompt) + [1] * count


def test_a_row_does_not_depend_on_the_others(base: Base, roles: Roles) -> None:
    starts = [Start(PROMPT, True, 0.8), Start(OPENING, False, 0.5)]
    other = [Start(PROMPT, True, 0.8), Start(PROMPT, True, 0.0)]
    one, mask = write(base, roles, starts, 80, 7)
    two, same_mask = write(base, roles, other, 80, 7)
    assert one[0].tolist() == two[0].tolist()
    assert mask[0].tolist() == same_mask[0].tolist()
    assert one[1].tolist() != two[1].tolist()


class Scripted:
    """Says the same token at every step, in all rows."""

    def __init__(self, base: Base, token: int) -> None:
        self.model = base.target.model
        self._token = token

    def forward(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        return mx.zeros((*tokens.shape, 1))

    def logits(self, hidden: mx.array) -> mx.array:
        return mx.broadcast_to(
            1000.0 * (mx.arange(tiny.VOCABULARY) == self._token), (len(hidden), tiny.VOCABULARY)
        )


def play(base: Base, roles: Roles, token: int, start: Start, length: int) -> Rolled:
    target: Any = Scripted(base, token)
    return roll(target, [start], length, roles=roles, key=mx.random.key(0))


def test_messages_that_end_at_once_switch_roles(base: Base, roles: Roles) -> None:
    rolled = play(base, roles, END, Start(PROMPT), len(PROMPT) + 40)
    to_user, to_answer = list(roles.to_user.ids), list(roles.to_answer.ids)
    expected = (PROMPT + (to_user + to_answer) * 10)[: len(PROMPT) + 40]
    assert rolled.tokens[0].tolist() == expected
    # Of each turn only the mark that ends an answer was the model's own.
    mask = [0] * len(PROMPT) + ([1] + [0] * (len(to_user) + len(to_answer) - 1)) * 10
    assert rolled.sampled[0].tolist() == mask[: len(expected)]


def test_an_endless_user_message_is_cut(base: Base, roles: Roles) -> None:
    letter = ids("x")[0]
    length = len(OPENING) + rollout.LONGEST_USER_TURN + 40
    rolled = play(base, roles, letter, Start(OPENING, answering=False), length)
    to_answer = list(roles.to_answer.ids)
    expected = OPENING + [letter] * rollout.LONGEST_USER_TURN + to_answer + [letter] * 40
    assert rolled.tokens[0].tolist() == expected[:length]
    first = len(OPENING) + rollout.LONGEST_USER_TURN + len(to_answer)
    assert rolled.sampled[0].tolist() == [0] * first + [1] * (length - first)


def test_noise_samples_the_law(base: Base) -> None:
    rows = 4000
    tokens, _ = write(base, None, [Start(OPENING, True, 1.0)] * rows, len(OPENING) + 1, 3)
    logits = base.target.logits(base.target.forward(mx.array([OPENING]), None)[0, -1:])
    law = np.array(mx.softmax(logits, axis=-1))[0]
    seen = np.bincount(tokens[:, -1], minlength=tiny.VOCABULARY) / rows
    assert np.abs(seen - law).max() < 0.03
    assert law.max() < 0.9


def test_user_messages_have_a_temperature_of_their_own(base: Base, roles: Roles) -> None:
    rows = 4000
    starts = [Start(OPENING, False, 0.0)] * rows
    tokens, sampled = write(base, roles, starts, len(OPENING) + 1, 5)
    logits = base.target.logits(base.target.forward(mx.array([OPENING]), None)[0, -1:])
    law, cold, even = (np.array(mx.softmax(logits / t, axis=-1))[0] for t in (0.8, 0.01, 1.6))
    seen = np.bincount(tokens[:, -1], minlength=tiny.VOCABULARY) / rows
    assert rollout.USER_TEMPERATURE == 0.8
    assert np.abs(seen - law).max() < 0.03
    assert min(np.abs(law - cold).max(), np.abs(law - even).max()) > 0.1
    assert sampled.sum() == 0  # a user's words are no answer


def test_an_answer_does_not_take_the_temperature_of_user_messages(base: Base, roles: Roles) -> None:
    tokens, _ = write(base, roles, [Start(PROMPT, True, 0.0)] * 50, len(PROMPT) + 1, 5)
    logits = base.target.logits(base.target.forward(mx.array([PROMPT]), None)[0, -1:])
    assert set(tokens[:, -1].tolist()) == {int(mx.argmax(logits))}


def test_where_the_model_folder_has_a_template_it_is_found(tmp_path: Path) -> None:
    from mlx_lm.utils import load_tokenizer

    tokenizer = load_tokenizer(tiny.write("llama", tmp_path / "m"), eos_token_ids=END)
    found = find_roles(tokenizer, frozenset({END}))
    assert found is not None
    assert list(found.to_answer.ids) == ids("<|end|>\n<|start|>assistant\n")
