"""The suites: what each is, which model it asks, how it is run, and what of it is left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.load import Target

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = ROOT / ".venv-conformance/bin/python"
NODE = HERE / "node_modules/.bin/node"
REAL, TINY = "smollm2-135m", "tiny"
EXAMPLES = 100
"""Requests that schemathesis draws for a route, beside those that it lists."""

Command = Callable[[Target, Path], list[str]]


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite that others wrote, or that drives what others wrote.

    Attributes
    ----------
    packages
        What it tries the endpoint with.
    model
        `REAL` where a sensible answer, a chat template or an end of the answer matters, `TINY`
        where thousands of requests do.
    command
        From the endpoint and the place of the report to what is run.
    left_out
        What of it is not run, and why.
    """

    name: str
    packages: tuple[str, ...]
    model: str
    command: Command
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """What it runs with."""
        pins = _pins()
        return ", ".join(f"{package} {pins[package]}" for package in self.packages)


def _pins() -> dict[str, str]:
    lines = (HERE / "requirements.txt").read_text().splitlines()
    python = dict(line.split("==") for line in lines if "==" in line)
    npm: dict[str, str] = json.loads((HERE / "package.json").read_text())["dependencies"]
    return {**python, **{f"{name} (npm)": version for name, version in npm.items()}}


def _pytest(name: str) -> Command:
    def command(target: Target, report: Path) -> list[str]:
        settings = ["-c", str(HERE / "suites/pytest.ini"), "-q", "--tb=short"]
        return [
            *(str(PYTHON), "-m", "pytest", *settings, f"--junitxml={report}"),
            str(HERE / f"suites/test_{name}.py"),
        ]

    return command


def _node(name: str) -> Command:
    def command(target: Target, report: Path) -> list[str]:
        return [
            *(str(NODE), "--test", "--test-reporter=junit"),
            f"--test-reporter-destination={report}",
            str(HERE / f"suites/{name}.test.mjs"),
        ]

    return command


def _schemathesis(place: Callable[[Target], list[str]], left_out: Mapping[str, str]) -> Command:
    def command(target: Target, report: Path) -> list[str]:
        return [
            *(str(PYTHON.with_name("st")), "run", *place(target)),
            *("--header", f"Authorization: Bearer {target.token}"),
            *("--checks", "all", "--exclude-checks", ",".join(left_out)),
            *("--max-examples", str(EXAMPLES), "--seed", "1", "--continue-on-failure"),
            *("--report-junit-path", str(report)),
        ]

    return command


EVENTS = {
    "schemas of streams": "they are of an event's data, as OpenAI writes them, and schemathesis "
    "takes them for the event's own; answers by OpenAI's schemas looks at every event"
}
OWN_LEFT_OUT = {
    "positive_data_acceptance": "in its place a check of ours lets the rules between fields refuse "
    "(suites/described.py lists them): JSON Schema has no short words for them",
}
OPENAIS_LEFT_OUT = {
    "positive_data_acceptance": "the endpoint refuses what it does not offer (images, audio, "
    "stored answers), in words and with status 400",
    "status_code_conformance": "OpenAI's description names no status but 200 and 429",
    "refused_by_a_rule_alone": "written for our own description",
}
SUITES = (
    Suite("langchain-tests", ("langchain-tests", "langchain-openai"), REAL, _pytest("langchain")),
    Suite("OpenAI's Python client", ("openai",), REAL, _pytest("openai_python")),
    Suite("OpenAI's npm client", ("openai (npm)",), REAL, _node("client")),
    Suite(
        "Vercel's AI SDK",
        ("ai (npm)", "@ai-sdk/openai-compatible (npm)", "@ai-sdk/openai (npm)"),
        REAL,
        _node("ai_sdk"),
    ),
    Suite("llm-comply", ("llm-comply",), REAL, _pytest("llm_comply")),
    Suite("answers by OpenAI's schemas", ("jsonschema",), TINY, _pytest("openai_schemas")),
    Suite(
        "schemathesis, our description",
        ("schemathesis",),
        TINY,
        _schemathesis(lambda target: [f"{target.url}/openapi.json"], OWN_LEFT_OUT),
        {**OWN_LEFT_OUT, **EVENTS},
    ),
    Suite(
        "schemathesis, OpenAI's description",
        ("schemathesis",),
        TINY,
        _schemathesis(
            lambda target: [str(HERE / "openai_spec/cut.json"), "--url", f"{target.url}/v1"],
            OPENAIS_LEFT_OUT,
        ),
        {**OPENAIS_LEFT_OUT, **EVENTS},
    ),
)
