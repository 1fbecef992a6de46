"""Answers held to schemas and grammars, through the engine, beside an oracle written here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

import mtplx_kernel as mk
from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.engine.constraints import KEPT, Constraints
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.mtp_batch import MTPBatchGenerationService, MTPBatchRequest
from mtplx_kernel.engine.request import Generation
from mtplx_kernel.errors import InvalidRequest, RequestFailed
from mtplx_kernel.scheduling.modes import SchedulerMode
from tests.engine.conftest import PROBE
from tests.engine.gates import PATIENCE_S
from tests.engine.test_schedulers import SETTINGS
from tests.tiny import END_ID, VOCABULARY

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "<|end|>"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
YES_OR_NO = 'start: "yes" | "no" | /[0-9]{2,4}/ "!"'
RULES = ("coupled", "rejection", "block")


def asks() -> list[tuple[list[int], dict[str, Any]]]:
    """Requests that are held to something and requests that are free, greedy and sampled."""
    found: list[tuple[list[int], dict[str, Any]]] = []
    for i in range(12):
        options: dict[str, Any] = {
            "max_tokens": 160,
            "temperature": (0.0, 0.9)[i % 2],
            "seed": i,
            "depth": (None, 3, 1)[i % 3],
        }
        if i % 4 == 3:
            options |= {"max_tokens": 20, "ignore_eos": True}
        elif i % 4 == 2:
            options |= {"grammar": YES_OR_NO, "logprobs": 2}
        else:
            options |= {"json_schema": PERSON}
        if i % 5 == 1:
            options["repetition_penalty"] = 1.3
        if i % 6 == 4:
            options["logit_bias"] = {34: 5.0}
        found.append(([PROBE, PROBE * 3][i % 2], options))
    return found


@pytest.fixture(scope="module")
def served(tiny_folder: Path) -> Iterator[Engine]:
    with mk.load(str(tiny_folder), prefix_cache_mb=0) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(served: Engine) -> list[Generation]:
    """What serial answers in mode ar, one request after the other."""
    return [served.generate(prompt, **{**options, "mode": "ar"}) for prompt, options in asks()]


def oracle(folder: Path, prompt: list[int], grammar: str, most: int = 160) -> list[int]:
    """Greedy ids by mlx-lm's plain forward over the whole text and the library's own masks."""
    model, wrapped = mlx_lm.load(str(folder))[:2]
    tokens = LLTokenizer(
        wrapped._tokenizer.backend_tokenizer.to_str(), n_vocab=VOCABULARY, eos_token=[END_ID]
    )
    matcher, ids = LLMatcher(tokens, grammar), list(prompt)
    words = allocate_token_bitmask(1, VOCABULARY)
    while len(ids) < len(prompt) + most:
        logits = np.array(model(mx.array([ids]))[0, -1].astype(mx.float32))
        fill_next_token_bitmask(matcher, words)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:VOCABULARY]
        token = int(np.where(bits, logits, -np.inf).argmax())
        if token == END_ID:
            break
        assert matcher.consume_token(token)
        ids.append(token)
    return ids[len(prompt) :]


@pytest.mark.parametrize("mode", ["ar", "mtp"])
@pytest.mark.parametrize("depth", [0, 2, None])
def test_greedy_ids_are_those_of_an_oracle(
    served: Engine, tiny_folder: Path, mode: str, depth: int | None
) -> None:
    plain = json.loads(json.dumps(PERSON).replace("<|end|>", "milk"))  # which the library mistakes
    schema = LLMatcher.grammar_from_json_schema(
        plain, overrides={"whitespace_pattern": r"\n?[ \t]{0,16}"}
    )
    for form, grammar in (({"json_schema": plain}, schema), ({"grammar": YES_OR_NO}, YES_OR_NO)):
        found = served.generate(PROBE, mode=mode, depth=depth, max_tokens=160, **form)
        assert list(found.token_ids) == oracle(tiny_folder, PROBE, grammar)
        assert found.finish_reason == "stop"
        assert found.stats.generation_mode == mode


@pytest.mark.parametrize("mode", SchedulerMode)
def test_every_scheduler_gives_what_serial_gives_in_mode_ar(
    served: Engine, expected: list[Generation], mode: str
) -> None:
    served.configure(scheduler=mode, **SETTINGS[mode])
    handles = [served.submit(prompt, **options) for prompt, options in asks()]
    found = [handle.result(PATIENCE_S) for handle in handles]
    served.configure(scheduler="serial")
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert (one.finish_reason, one.logprobs) == (other.finish_reason, other.logprobs)


def test_forks_give_the_same(served: Engine, expected: list[Generation]) -> None:
    served.configure(scheduler="hyper")
    served.gate.install_width_executor(served.fork_executor(3))
    found = [served.generate(prompt, **options) for prompt, options in asks()]
    served.configure(scheduler="serial")
    assert [one.token_ids for one in found] == [other.token_ids for other in expected]


def test_answers_fit_their_form(expected: list[Generation]) -> None:
    for one, (_, options) in zip(expected, asks(), strict=True):
        if "json_schema" in options:
            assert one.finish_reason == "stop"
            jsonschema.validate(json.loads(one.text), PERSON)
        elif "grammar" in options:
            assert one.text in ("yes", "no") or (one.text[-1] == "!" and one.text[:-1].isdigit())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_sampled_answers_fit_under_every_rule(
    served: Engine, rule: str, temperature: float
) -> None:
    for seed in range(4):
        found = served.generate(
            PROBE,
            json_schema=PERSON,
            acceptance=rule,
            temperature=temperature,
            seed=seed,
            depth=4,
            max_tokens=200,
        )
        assert found.finish_reason == "stop"
        jsonschema.validate(json.loads(found.text), PERSON)
        assert sum(found.stats.accepted_by_depth or ()) > 0, "what the schema forces is drafted"


def test_logprobs_are_of_what_may_come(served: Engine) -> None:
    found = served.generate(PROBE, json_schema={"const": 7}, logprobs=3)
    assert (found.text, found.token_ids) == ("7", (22,))
    assert found.logprobs is not None
    assert [(t.logprob, t.top) for t in found.logprobs] == [(0.0, ((22, 0.0),))]


def test_the_end_comes_where_the_form_has_one(served: Engine) -> None:
    """An end token only where the text may end; a whole object ends by itself."""
    bias = {END_ID: 100.0}
    assert served.generate(PROBE, grammar="start: /[ab]*/", logit_bias=bias).text == ""
    found = served.generate(PROBE, grammar="start: /[ab]{3,9}/", logit_bias=bias)
    assert (len(found.text), found.finish_reason, found.window.end_token) == (3, "stop", True)
    found = served.generate(PROBE, json_schema={"const": {}}, logit_bias=bias)
    assert (found.text, found.finish_reason, found.window.end_token) == ("{}", "stop", False)


def test_length_and_stop_strings_cut_it(served: Engine) -> None:
    found = served.generate(PROBE, json_schema=PERSON, max_tokens=5)
    assert (found.finish_reason, len(found.token_ids)) == ("length", 5)
    found = served.generate(PROBE, json_schema={"const": "before, after"}, stop=", ")
    assert (found.finish_reason, found.text) == ("stop", '"before')


def test_text_spelled_like_a_special_token_is_text(served: Engine) -> None:
    for text in ("<|end|>", "a<|start|>b"):
        assert json.loads(served.generate(PROBE, json_schema={"const": text}).text) == text


def test_a_cohort_of_its_own_may_be_held(served: Engine) -> None:
    served.configure(scheduler="mtp_batch", width=2)
    params = SamplingParams(max_tokens=160, json_schema=PERSON)  # type: ignore[arg-type]
    requests = [MTPBatchRequest(prompt_ids=PROBE, params=params)] * 2
    try:
        found = MTPBatchGenerationService(served).generate_mtp_batch(requests)
    finally:
        served.configure(scheduler="serial")
    expected = served.generate(PROBE, json_schema=PERSON, max_tokens=160).token_ids
    texts = [one.token_ids for one in found if isinstance(one, Generation)]
    assert texts == [expected] * 2


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ({"json_schema": {"not": {}}}, "json_schema cannot be used: Unimplemented keys"),
        ({"json_schema": {"type": "strin"}}, "json_schema cannot be used: Invalid type: strin"),
        ({"json_schema": {"$ref": "#"}}, "json_schema cannot be used: no text fits it"),
        ({"json_schema": {"$ref": "http://127.0.0.1:9/a"}}, "json_schema cannot be used: "),
        ({"json_schema": {"$ref": "file:///etc/passwd"}}, "json_schema cannot be used: "),
        ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum"),
        ({"json_schema": "[1]"}, "json_schema must be an object"),
        ({"grammar": "start: ("}, "grammar cannot be used: "),
        ({"grammar": "begin: 'a'"}, "grammar cannot be used: "),
    ],
)
def test_what_cannot_be_compiled_is_refused(
    engine: Engine, form: dict[str, Any], line: str
) -> None:
    before = len(engine.timeline.windows())
    for ask in (engine.generate, engine.submit, engine.stream):
        with pytest.raises(InvalidRequest) as caught:
            ask(PROBE, **form)
        assert line in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(InvalidRequest):
        engine.generate_batch([PROBE], **form)
    assert len(engine.timeline.windows()) == before


def nested(depth: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": nested(depth - 1)}} if depth else {}


@pytest.mark.parametrize(
    "schema",
    [
        nested(300),
        {"type": "object", "properties": {f"{i:x}": {} for i in range(5000)}},
        {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(9)]} for i in range(9)]},
        {"type": "object", "patternProperties": {f".*{i}.*": {} for i in range(200)}},
    ],
    ids=["deep", "wide", "product", "patterns"],
)
def test_what_costs_too_much_is_refused(engine: Engine, schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="json_schema cannot be used: "):
        engine.submit(PROBE, json_schema=schema)


def test_many_references_in_a_row_end_no_process(tiny_folder: Path) -> None:
    """The library follows them by recursion; threads have little stack on some systems."""
    code = (
        "import json, sys, threading, types\n"
        "from mtplx_kernel.decoding.params import SamplingParams\n"
        "from mtplx_kernel.engine.constraints import Constraints\n"
        "from tokenizers import Tokenizer\n"
        f"tokens = Tokenizer.from_file({str(tiny_folder / 'tokenizer.json')!r})\n"
        "facts = types.SimpleNamespace(end_ids={257}, vocabulary=260, name='tiny')\n"
        "made = Constraints(types.SimpleNamespace(backend_tokenizer=tokens), facts)\n"
        "chain = {f'{i:x}': {'allOf': [{'$ref': f'#/$defs/{i + 1:x}'}]} for i in range(1500)}\n"
        "chain[f'{1500:x}'] = {'type': 'integer'}\n"
        "text = json.dumps({'$defs': chain, '$ref': '#/$defs/0'})\n"
        "def compiled():\n"
        "    form = made.of(SamplingParams(json_schema=text)).start()\n"
        "    print(form.allowed([]).sum().item(), threading.stack_size())\n"
        "threading.stack_size(512 * 1024)\n"
        "thread = threading.Thread(target=compiled)\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("11 524288\n", 0), done.stderr


def test_a_form_that_runs_out_of_its_limits_ends_its_request_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library then allows the end, as if the answer were whole."""

    def tight(**limits: Any) -> LLParserLimits:
        return LLParserLimits(step_lexer_fuel=50, **limits)

    monkeypatch.setattr("llguidance.LLParserLimits", tight)
    costly = {"type": "string", "pattern": "^(.*a.{1,900}b.*){5}$"}
    free = engine.submit(PROBE, max_tokens=40)
    held = engine.submit(PROBE, json_schema=costly, max_tokens=400)
    with pytest.raises(RequestFailed, match="the grammar cannot go on: lexer error"):
        held.result(PATIENCE_S)
    assert free.result(PATIENCE_S).finish_reason in ("stop", "length")


def test_a_form_is_compiled_once(served: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    real = Constraints._compile

    def counting(self: Constraints, schema: str | None, grammar: str | None) -> Any:
        compiled.append(schema or "")
        return real(self, schema, grammar)

    monkeypatch.setattr(Constraints, "_compile", counting)
    for _ in range(3):
        served.generate(PROBE, json_schema={"const": 1})
    assert compiled == ['{"const":1}']
    for n in range(KEPT):
        served.generate(PROBE, json_schema={"const": 2 + n}, max_tokens=1)
    served.generate(PROBE, json_schema={"const": 1})
    assert compiled.count('{"const":1}') == 2, "few are kept"


def test_a_model_without_an_end_cannot_be_held(served: Engine) -> None:
    facts = served.facts
    object.__setattr__(facts, "end_ids", frozenset())
    try:
        with pytest.raises(InvalidRequest, match="tiny-llama has no end token"):
            Constraints(served.tokenizer, facts).of(SamplingParams(json_schema="{}"))
    finally:
        object.__setattr__(facts, "end_ids", frozenset({END_ID}))


def test_the_library_is_loaded_with_the_first_form(tiny_folder: Path) -> None:
    code = (
        "import sys, mtplx_kernel as mk\n"
        f"with mk.load({str(tiny_folder)!r}, progress=False) as engine:\n"
        "    engine.generate([1, 2], max_tokens=2)\n"
        "    before = 'llguidance' in sys.modules\n"
        "    engine.generate([1, 2], json_schema={'const': 1})\n"
        "    print(before, 'llguidance' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"
