"""The grammar: what is read, and the one line that refuses the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtplx_kernel import options
from mtplx_kernel.chat_command import COMMANDS
from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.serve_options import SERVE_OPTIONS, serve_settings
from mtplx_kernel.words import split_prompt, split_words, unescape


def read(line: str) -> options.RequestOptions:
    return options.read_request(split_words(line), "%%mtplx")


def refusal(line: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read(line)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_nothing_given_is_nothing_set() -> None:
    assert read("") == options.RequestOptions()


def test_every_option_is_read() -> None:
    found = read(
        "--mode ar --max-tokens 5 --temperature 0.5 --top-p 0.9 --top-k 4 --min-p 0.1 --seed 7 "
        "--depth 3 --acceptance block --stop 'a b' --stop \\n\\n --repetition-penalty 1.1 "
        "--presence-penalty -0.5 --frequency-penalty=.25 --system 'Be brief.' --vars a,b --vars c "
        "--logprobs 2 --out result --markdown --quiet --batch --samples 3 --priority 2"
    )
    assert found.sampling == {
        "mode": "ar",
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.1,
        "seed": 7,
        "depth": 3,
        "acceptance": "block",
        "stop": ["a b", "\n\n"],
        "repetition_penalty": 1.1,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.25,
        "logprobs": 2,
    }
    assert (found.system, found.variables, found.out) == ("Be brief.", ("a", "b", "c"), "result")
    assert (found.markdown, found.quiet, found.raw, found.chat) == (True, True, False, False)
    assert (found.batch, found.samples, found.priority) == (True, 3, 2.0)
    assert read("--raw").raw
    assert read("--chat").chat
    assert read("--trace").trace


def test_a_schema_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "of a river.json"
    file.write_text('{"enum": ["Ä"]}', encoding="utf-8")
    assert read(f"--json-schema '{file}'").sampling == {"json_schema": '{"enum": ["Ä"]}'}
    file.write_text("[]")
    assert refusal(f"--json-schema '{file}'").startswith("--json-schema must be an object, or its")
    missing = refusal("--json-schema nowhere.json")
    assert missing.startswith("--json-schema must be a file with a JSON schema, not 'nowhere.json'")


def test_every_sampling_option_is_a_sampling_parameter() -> None:
    assert {o.name for o in options.SAMPLING_OPTIONS} <= set(SamplingParams.names())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--top-k x", "--top-k must be a whole number at least 0, not 'x'"),
        ("--top-p 3", "--top-p must be a number above 0 and at most 1, not 3.0"),
        ("--temperature nan", "--temperature must be a number from 0 to 100, not nan"),
        ("--logprobs 21", "--logprobs must be a whole number from 0 to 20, not 21"),
        ("--max-tokens 0", "--max-tokens must be a whole number at least 1, not 0"),
        ("--mode fast", "--mode must be one of mtp, ar, not 'fast'"),
        (
            "--acceptance all",
            "--acceptance must be one of coupled, rejection, block, not 'all'",
        ),
        ("--seed", "--seed needs a value: --seed N"),
        ("--seed --raw", "--seed needs a value: --seed N"),
        ("--raw=yes", "--raw takes no value"),
        ("--stop ''", "--stop must be non-empty strings, not ''"),
        ("--out 3x", "--out must be a plain variable name, not '3x'"),
        ("--out for", "--out must be a plain variable name, not 'for'"),
        ("--vars a.b", "--vars must be a plain variable name, not 'a.b'"),
        ("--vars a,,b", "--vars must be a plain variable name, not ''"),
        ("hello", "%%mtplx takes options only, not 'hello'; see %mtplx help"),
        ("-x", "%%mtplx takes options only, not '-x'; see %mtplx help"),
        ("--raw --chat", "--raw and --chat exclude each other: raw text has no turns"),
        *(
            (f"--trace {f} {v}", f"{f} and --trace exclude each other: it shows one plain text")
            for f, v in (("--batch", ""), ("--samples", 2), ("--quiet", ""), ("--markdown", ""))
        ),
        ("--raw --system x", "--raw and --system exclude each other: raw text has no messages"),
        ("--stop 'a", "a quote is not closed in: 'a"),
    ],
)
def test_refusals_say_what_is_allowed(line: str, message: str) -> None:
    assert refusal(line) == message


def test_a_misspelt_option_gets_a_suggestion_and_the_list() -> None:
    message = refusal("--temprature 3")
    assert message.startswith(
        "unknown option '--temprature'; did you mean --temperature? allowed: --mode, --max-tokens"
    )
    assert "did you mean" not in refusal("--zzz")
    # No abbreviations: what works today must not become ambiguous tomorrow.
    assert "did you mean --max-tokens?" in refusal("--max-token 3")


@pytest.mark.parametrize("text", ["---", "--", "-", "--end", "-h", "--help", "a=b", "=", "-- x --"])
def test_a_value_may_begin_as_it_likes(text: str) -> None:
    assert read(f"--raw --stop '{text}' --seed 3").sampling == {"stop": [text], "seed": 3}
    assert read(f"--stop='{text}'").sampling == {"stop": [text]}
    assert read(f"--system '{text}'").system == text
    assert not options.asks_help(split_words(f"--stop '{text}' --raw"))
    words, prompt = split_prompt(f"--stop '{text}' Hi", options.TAKES_VALUE)
    assert (words, prompt) == (["--stop", text], "Hi")


def test_an_options_name_as_a_value_is_written_with_an_equals_sign() -> None:
    assert refusal("--stop --raw") == "--stop needs a value: --stop TEXT"
    assert refusal("--stop --seed=3") == "--stop needs a value: --stop TEXT"
    assert read("--stop=--raw").sampling == {"stop": ["--raw"]}


@pytest.mark.parametrize("line", ["-h", "--help", "--seed 3 --help", "--raw -h"])
def test_help_is_asked_for_among_the_options(line: str) -> None:
    assert options.asks_help(split_words(line))


def test_escapes_of_stop() -> None:
    assert unescape(r"a\nb\t\\n\x41\u00e9\"\q") == 'a\nb\t\\nAé"\\q'
    assert unescape("C:\\models") == "C:\\models"


@given(st.text(alphabet=st.characters(exclude_characters="\\")))
def test_text_without_backslashes_stays(text: str) -> None:
    assert unescape(text) == text


def test_words_keep_backslashes_and_hashes() -> None:
    assert split_words(r"load C:\models\x 'a b'#1") == ["load", r"C:\models\x", "a b#1"]


@pytest.mark.parametrize(
    ("line", "words", "prompt"),
    [
        ("What's up?", [], "What's up?"),
        ("  two  spaces ", [], "two  spaces"),
        ('"Quoted as a whole"', [], "Quoted as a whole"),
        ('"One" and "two"', [], '"One" and "two"'),
        ('"not closed', [], '"not closed'),
        ("--seed 3 --raw Once upon", ["--seed", "3", "--raw"], "Once upon"),
        ("--stop=x --seed=3 hi", ["--stop=x", "--seed=3"], "hi"),
        ("--system 'Be brief.' hi", ["--system", "Be brief."], "hi"),
        ("--seed 3 -- --raw is a flag", ["--seed", "3"], "--raw is a flag"),
        ("- a list item", [], "- a list item"),
        ("-5 + 3", [], "-5 + 3"),
        ("'hi' --seed 3", ["--seed", "3"], "hi"),
        ("'say --seed 3'", [], "say --seed 3"),
        ('{"a": [1, 2]} {x} $y', [], '{"a": [1, 2]} {x} $y'),
        ("--seed", ["--seed"], ""),
    ],
)
def test_a_line_splits_into_options_and_a_verbatim_prompt(
    line: str, words: list[str], prompt: str
) -> None:
    assert split_prompt(line, options.TAKES_VALUE) == (words, prompt)


def test_an_option_after_a_bare_prompt_is_not_silently_a_part_of_it() -> None:
    with pytest.raises(InvalidRequest, match="options go before the prompt: write --seed first"):
        split_prompt("hello --seed 3", options.TAKES_VALUE)


def test_verbs_read_their_own_options() -> None:
    assert options.read_words("load", ["m", "--mode", "ar"]) == ({"mode": "ar"}, ["m"])
    assert options.read_words("load", ["--queue-limit", "9", "m"]) == ({"queue_limit": 9}, ["m"])
    assert options.read_words("load", ["--", "--m"]) == ({}, ["--m"])
    assert options.read_words("load", ["m", "--head", "none"]) == ({"head": "none"}, ["m"])
    assert options.read_words("verify", ["--prompts", "2", "--temperature", "0"]) == (
        {"prompts": 2, "temperature": 0.0},
        [],
    )
    with pytest.raises(InvalidRequest, match="unknown option '--raw'; allowed: --mode, --queue"):
        options.read_words("load", ["m", "--raw"])
    with pytest.raises(InvalidRequest, match="'--x'; none is allowed here"):
        options.read_words("reset", ["--x"])
    with pytest.raises(InvalidRequest, match=r"'now' is one word too many; write %mtplx status"):
        options.read_words("status", ["now"], most=0)
    with pytest.raises(InvalidRequest, match="--mode must be one of mtp, ar, not 'x'"):
        options.read_words("load", ["m", "--mode", "x"])


def test_tune_keeps_unless_it_is_told_not_to() -> None:
    assert options.tune_wishes({}) == {"keep": True, "forget": False}
    assert options.tune_wishes({"keep": True}) == {"keep": True, "forget": False}
    assert options.tune_wishes({"no_keep": True, "max_depth": 2}) == {
        "keep": False,
        "forget": False,
        "max_depth": 2,
    }
    assert options.tune_wishes({"forget": True}) == {"keep": True, "forget": True}
    with pytest.raises(InvalidRequest, match="--keep and --no-keep exclude each other"):
        options.tune_wishes({"keep": True, "no_keep": True})
    for other in ({"prompts": 2}, {"keep": True}, {"no_keep": True}):
        with pytest.raises(InvalidRequest, match="--forget stands alone: it measures nothing"):
            options.tune_wishes({"forget": True, **other})


def test_help_names_every_verb_and_option_in_a_narrow_page() -> None:
    page = options.help_text()
    assert max(len(line) for line in page.splitlines()) <= 78
    for verb in options.VERBS.values():
        assert f"  %mtplx {verb.usage}" in page
    for option in (
        *options.REQUEST_OPTIONS,
        *(o for v in options.VERBS.values() for o in v.options),
    ):
        assert re.search(rf"^  {option.flag} ", page, re.MULTILINE), option.flag


def test_the_page_of_the_magics_names_them_too() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "magics.md").read_text()
    for verb in options.VERBS.values():
        assert f"`%mtplx {verb.usage}`".replace("|", "\\|") in page
    for option in (*options.REQUEST_OPTIONS, *options.LOAD_OPTIONS):
        assert f"`{option.flag} {option.metavar}".strip() + "`" in page, option.flag


def test_the_page_of_the_endpoint_names_its_options() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "endpoint.md").read_text()
    for option in SERVE_OPTIONS:
        assert f"`{option.flag} {option.metavar}".strip() + "`" in page, option.flag
    for verb in COMMANDS.values():
        usage = verb.usage.replace("|", "\\|")
        assert f"| `{usage}` |" in page


def test_the_options_of_serve_become_those_of_an_endpoint() -> None:
    found, _ = options.read_words(
        "serve", split_words("--cors http://a:1,http://b --port 8 --cors http://c")
    )
    assert serve_settings(found) == {"cors": ("http://a:1", "http://b", "http://c"), "port": 8}
    assert serve_settings({"token": "x"}) == {"token": "x"}
    assert serve_settings({"no_auth": True}) == {"token": False}


def test_the_page_of_the_checks_names_their_options() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "checks.md").read_text()
    for option in (*options.VERIFY_OPTIONS, *options.TUNE_OPTIONS):
        assert f"`{option.flag} {option.metavar}".strip() + "`" in page, option.flag


def test_the_page_of_the_schedulers_names_them_and_their_options() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "schedulers.md").read_text()
    for option in (*options.SCHEDULER_OPTIONS, *options.BENCH_OPTIONS):
        assert f"`{option.flag} {option.metavar}".strip() + "`" in page, option.flag
    for name in options.SCHEDULERS:
        assert f"| `{name}` |" in page
