"""llm-comply's tests of chat completions, each as one test here."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from llm_comply.config import ComplianceConfig
from llm_comply.result import TestStatus as Status
from llm_comply.runner import TestRunner as Runner
from llm_comply.schema import SpecLoader
from llm_comply.test_case import TestCase as Case
from llm_comply.tests import get_tests

FORMAT = "openai-chat"
SPEC = files("llm_comply") / "specs/openai_chat.json"
NOT_OFFERED = {"chat-image-input": "the endpoint offers text alone, and says so with status 400"}


def _settled(build: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    """The same request with one answer: the likeliest, and one tool call where any is due.

    Without it so small a model may chat, or call tools, until its longest answer is full.
    """

    def settled(config: Any) -> dict[str, Any]:
        built = build(config)
        one_call = {"parallel_tool_calls": False} if "tools" in built else {}
        return {**built, "temperature": 0, **one_call}

    return settled


@pytest.mark.parametrize("case", get_tests(FORMAT), ids=lambda case: case.id)
def test_it_complies(case: Case) -> None:
    if case.id in NOT_OFFERED:
        pytest.skip(NOT_OFFERED[case.id])
    config = ComplianceConfig(
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        model=os.environ["ENDPOINT_MODEL"],
        timeout=300,
    )
    result = Runner(config, [case], SpecLoader(str(SPEC))).run_one(
        replace(case, build_request=_settled(case.build_request))
    )
    if result.status is Status.SKIPPED:
        pytest.skip("; ".join(result.errors))
    assert result.status is Status.PASSED, result.errors
    for warning in result.warnings:
        print("warning:", warning)
