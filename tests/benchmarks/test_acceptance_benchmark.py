"""The acceptance benchmark: counts and averages by hand, then real decoding of a tiny model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from benchmarks import acceptance_page, scores
from benchmarks.acceptance import Plan, arguments, main, measure, prompts_of
from benchmarks.head_side import Answer, Cycle, HeadSide, load_side
from benchmarks.measure import BenchmarkFailed, EncodedPrompt
from benchmarks.scores import Scores, Text
from mtplx_kernel.caching.slots import StockCaches
from mtplx_kernel.decoding.params import GenerationMode, SamplingParams
from mtplx_kernel.decoding.step import Outcome, Token
from mtplx_kernel.heads.distilled_file import save_distilled
from mtplx_kernel.models.load import LoadedModel, load
from mtplx_kernel.training.base import make_base, new_head
from mtplx_kernel.training.heldout import DOMAINS, HELD_OUT
from tests import tiny
from tests.decoding.heads import FailingHead, TrueHead
from tests.decoding.rows import make_row

COLUMNS = 200
ALL_RIGHT = Cycle(judged=3, right=3, tokens=4)
ONE_RIGHT = Cycle(judged=2, right=1, tokens=2)
ALL_WRONG = Cycle(judged=1, right=0, tokens=1)
NO_DRAFT = Cycle(judged=0, right=0, tokens=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama with room for the held-out prompts, at a token a byte."""
    place = tmp_path_factory.mktemp("models") / "llama"
    return tiny.write("llama", place, max_position_embeddings=2048)


@pytest.fixture(scope="module")
def endless(folder: Path) -> LoadedModel:
    """That model, without end tokens."""
    loaded = load(folder, "llama", "none")
    facts = dataclasses.replace(loaded.facts, end_ids=frozenset())
    return dataclasses.replace(loaded, facts=facts)


@pytest.fixture(scope="module")
def head(folder: Path, endless: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random head for it."""
    base = make_base(folder, endless.target, endless.tokenizer, endless.facts.end_ids)
    made = new_head(base, mx.arange(COLUMNS, dtype=mx.int32), seed=1)
    path = tmp_path_factory.mktemp("heads") / "head.safetensors"
    save_distilled(path, made, base.norm)
    return path


def outcome(emitted: int, drafted: int, accepted: int, *, end: bool = False) -> Outcome:
    tokens = tuple(Token(i, "") for i in range(emitted))
    return Outcome(make_row([1]), tokens, drafted, accepted, "stop" if end else None, end)


def test_what_a_cycle_tells() -> None:
    assert Cycle.of(outcome(4, 3, 3)) == ALL_RIGHT
    assert Cycle.of(outcome(2, 3, 1)) == ONE_RIGHT
    assert Cycle.of(outcome(1, 3, 0)) == ALL_WRONG
    assert Cycle.of(outcome(1, 0, 0)) == NO_DRAFT


def test_drafts_after_the_end_are_not_judged() -> None:
    # The second draft was the end token, and right: nothing is known of the third.
    assert Cycle.of(outcome(1, 3, 2, end=True)) == Cycle(judged=2, right=2, tokens=2)
    # The model itself ended after one right draft: the second draft was wrong.
    assert Cycle.of(outcome(1, 3, 1, end=True)) == Cycle(judged=2, right=1, tokens=2)


PROMPT = (11, 12, 13, 14, 15)


def true_side(loaded: LoadedModel, tokens: int, wrong_every: int) -> tuple[HeadSide, Answer]:
    """A side whose head knows the text, wrong at some places; and the text."""
    params = SamplingParams(max_tokens=tokens)
    expected = HeadSide(loaded, None).answer(PROMPT, GenerationMode.AR, params)
    head = TrueHead([[*PROMPT, *expected.ids]], wrong_every)
    return HeadSide(loaded, head), expected


def test_a_head_that_copies_the_target(endless: LoadedModel) -> None:
    side, expected = true_side(endless, 12, wrong_every=10**6)
    found = side.answer(PROMPT, GenerationMode.MTP, SamplingParams(max_tokens=12, depth=3))
    assert found.ids == expected.ids
    assert found.cycles == (ALL_RIGHT,) * 3
    assert scores.pooled(found.cycles, 3) == Scores((1.0, 1.0, 1.0), 4.0)
    assert [cycle.tokens for cycle in expected.cycles] == [1] * 12


def test_a_head_that_is_wrong_at_known_places(endless: LoadedModel) -> None:
    """Of positions 5 to 14 the head is wrong at 6, 9 and 12; every third is a cycle's last."""
    side, expected = true_side(endless, 10, wrong_every=3)
    found = side.answer(PROMPT, GenerationMode.MTP, SamplingParams(max_tokens=10, depth=2))
    assert found.ids == expected.ids
    assert found.cycles == (
        Cycle(judged=2, right=1, tokens=2),  # 5, and 6 instead of a wrong draft
        Cycle(judged=2, right=2, tokens=3),  # 7, 8, and 9 that was not drafted
        Cycle(judged=2, right=2, tokens=3),  # 10, 11, 12
        Cycle(judged=1, right=1, tokens=2),  # 13, 14: the last token needs no draft
    )
    assert scores.pooled(found.cycles, 2) == Scores((4 / 4, 2 / 3), 10 / 4)


def test_a_head_that_fails_is_an_error(endless: LoadedModel) -> None:
    side = HeadSide(endless, FailingHead([list(PROMPT)], "raises", after=7))
    with pytest.raises(BenchmarkFailed, match="decoding failed: head: ZeroDivisionError: no luck"):
        side.answer(PROMPT, GenerationMode.MTP, SamplingParams(max_tokens=12, depth=2))


def text(domain: str, cycles: Sequence[Cycle], temperature: float = 0.0, **known: Any) -> Text:
    """A text of different ids, so that none repeats."""
    ids = tuple(range(sum(cycle.tokens for cycle in cycles)))
    return Text(EncodedPrompt("p", domain, (1,)), temperature, Answer(ids, tuple(cycles)), **known)


def test_domains_count_alike_in_the_averages() -> None:
    texts = [
        text("chat", [ALL_RIGHT]),
        text("chat", [ALL_WRONG, ONE_RIGHT, ONE_RIGHT]),
        text("code", [ALL_WRONG]),
        text("code", [ALL_RIGHT], temperature=0.8),
    ]
    values = scores.values_by_domain(texts, 3)
    assert values == {
        "greedy_acceptance_1": {"chat": 3 / 4, "code": 0.0},
        "greedy_acceptance_2": {"chat": 1 / 3},  # no second draft of code was judged
        "greedy_acceptance_3": {"chat": 1.0},
        "greedy_tokens_a_cycle": {"chat": 9 / 4, "code": 1.0},
        "t0.8_acceptance_1": {"code": 1.0},
        "t0.8_acceptance_2": {"code": 1.0},
        "t0.8_acceptance_3": {"code": 1.0},
        "t0.8_tokens_a_cycle": {"code": 4.0},
    }
    averages = scores.averages(values)
    assert averages["greedy_acceptance_1"] == 3 / 8
    assert averages["greedy_tokens_a_cycle"] == 13 / 8


def test_cycles_that_begin_in_a_loop_do_not_count() -> None:
    loop = tuple(range(100, 108))
    ids = (*range(6), *loop * 5)  # begins to repeat itself at 14
    cycles = (*(ALL_RIGHT,) * 4, *(ALL_RIGHT,) * 7, ONE_RIGHT)
    assert sum(cycle.tokens for cycle in cycles) == len(ids) == 46
    looping = Text(EncodedPrompt("p", "chat", (1,)), 0.0, Answer(ids, cycles))
    assert looping.loops_at == 14
    assert looping.counted == [ALL_RIGHT] * 4  # they began at 0, 4, 8 and 12
    assert text("chat", cycles).loops_at is None
    assert text("chat", cycles).counted == list(cycles)


def run(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    given = ["--prompts-a-domain", "1", "--max-tokens", "24", *options]
    assert main(given) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_one_json_object_says_everything(
    folder: Path, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(capsys, "--model", str(folder), "--head", str(head), "--depth", "2", "--json")
    report = json.loads(out.splitlines()[-1])
    assert [*report] == [
        *("benchmark", "model", "machine", "ratios", "ids_equal", "table", "domains")
    ]
    assert (report["benchmark"], report["model"]) == ("acceptance", folder.name)
    assert report["ids_equal"] is True
    machine = report["machine"]
    assert machine["head"]["source"] == str(head)
    assert (machine["head"]["columns"], machine["drafts_a_cycle"]) == (COLUMNS, 2)
    table = report["table"]
    first = [next(p.name for p in HELD_OUT if p.domain == domain) for domain in DOMAINS]
    assert [(r["prompt"], r["temperature"]) for r in table] == [
        (name, temperature) for temperature in (0.0, 0.8) for name in first
    ]
    for row in table:
        assert row["diverges_at"] is None
        assert row["judged"][0] >= row["right"][0] >= row["judged"][1] >= row["right"][1]
        # A cycle gives its right drafts and one token more, but for an end token in a draft.
        assert 0 <= row["cycles"] + sum(row["right"]) - row["tokens"] <= 1
    chat = [r for r in table if r["domain"] == "chat" and r["temperature"] == 0.8]
    of_chat = sum(r["tokens"] for r in chat) / sum(r["cycles"] for r in chat)
    by_domain = report["domains"]["t0.8_tokens_a_cycle"]
    assert by_domain["chat"] == of_chat
    assert [*by_domain] == list(DOMAINS)
    assert report["ratios"]["t0.8_tokens_a_cycle"] == pytest.approx(sum(by_domain.values()) / 6)


def test_the_page_and_a_prefix_of_the_draft_vocabulary(
    folder: Path, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--head", str(head), "--columns", "7", "--temperature", "0.5")
    page = run(capsys, "--model", str(folder), *options)
    assert "drafts 7 ids" in " ".join(page.split())
    assert "Temperature 0.5, coupled:" in page
    assert "nothing was compared with mode ar" in page
    header = next(line for line in page.splitlines() if line.startswith("DOMAIN"))
    columns = " ".join(header.split())
    assert columns == "DOMAIN depth 1 depth 2 depth 3 tok/cycle cycles texts cut"
    starts = [line.split()[0] for line in page.splitlines() if line]
    assert all(domain in starts for domain in (*DOMAINS, "average"))
    assert all(len(line) < 80 or str(head) in line for line in page.splitlines())


def test_without_a_head_every_cycle_gives_one_token(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--head", "none", "--temperature", "0", "--json")
    report = json.loads(run(capsys, "--model", str(folder), *options))
    assert report["ratios"] == {"greedy_tokens_a_cycle": 1.0}
    assert report["machine"]["head"] is None


def test_texts_that_differ_from_mode_ar_are_reported(endless: LoadedModel) -> None:
    side = HeadSide(endless, None)
    prompts = prompts_of(side, 1)[:2]
    answer = side.answer

    def wrong(
        prompt_ids: Sequence[int], mode: GenerationMode, params: SamplingParams, seed: int = 0
    ) -> Answer:
        right = answer(prompt_ids, mode, params, seed)
        if mode is GenerationMode.AR or tuple(prompt_ids) != prompts[1].ids:
            return right
        changed = (right.ids[3] + 1) % tiny.VOCABULARY
        return Answer((*right.ids[:3], changed, *right.ids[4:]), right.cycles)

    side.answer = wrong  # type: ignore[method-assign]
    report = measure(side, prompts, Plan(3, (0.0,), 8))
    assert report.ids_equal is False
    assert [row["diverges_at"] for row in report.table] == [None, 3]
    known = answer(prompts[1].ids, GenerationMode.AR, SamplingParams(max_tokens=8)).ids
    logits = endless.target.model(mx.array([[*prompts[1].ids, *known[:3]]]))[0, -1]
    second, first = sorted(logits.tolist())[-2:]
    assert report.table[1]["top2_margin"] == pytest.approx(first - second, rel=1e-4)
    line = acceptance_page.text(report).splitlines()[-1].split()
    assert line[:2] == [prompts[1].name, "3"]


def failed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main([*options, "--prompts-a-domain", "1"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    return err


def test_what_cannot_be_run_is_one_line(
    folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ("--model", str(folder))
    assert "error: no head was found for llama" in failed(capsys, *model)
    assert "leave out --columns" in failed(capsys, *model, "--head", "none", "--columns", "3")
    wide = ("--head", str(head), "--columns", str(COLUMNS + 1))
    assert f"ask for 1 to {COLUMNS}" in failed(capsys, *model, *wide)
    assert "there is no head" in failed(capsys, *model, "--head", str(tmp_path / "nothing"))


def test_caches_that_take_nothing_back_are_refused(
    endless: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = StockCaches(endless.target.model), "its caches only grow"
    monkeypatch.setattr("mtplx_kernel.engine.fit.choose_caches", lambda target: caches)
    with pytest.raises(BenchmarkFailed, match="llama cannot draft: its caches only grow; take"):
        HeadSide(endless, None)


def test_a_narrower_head_drafts_fewer_ids(folder: Path, head: Path) -> None:
    assert load_side(str(folder), str(head)).columns == COLUMNS
    assert load_side(str(folder), str(head), 9).columns == 9


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--temperature", "0,0", "a list of different temperatures from 0 to 100, such as 0,0.8"),
        ("--temperature", "warm", "a list of different temperatures from 0 to 100, such as 0,0.8"),
        ("--temperature", "nan", "a list of different temperatures from 0 to 100, such as 0,0.8"),
        ("--depth", "17", "a whole number from 1 to 16"),
        ("--prompts-a-domain", "10", "a whole number from 1 to 9"),
    ],
)
def test_wrong_options_are_refused(
    option: str, value: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments([option, value])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f"argument {option}: {value!r} is not {allowed}")
