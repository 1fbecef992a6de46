"""LangChain's standard tests for chat models, with its OpenAI class pointed at the endpoint."""

from __future__ import annotations

import os
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

MODEL = os.environ["ENDPOINT_MODEL"]


class TestEndpoint(ChatModelIntegrationTests):
    """Address and token come from OPENAI_BASE_URL and OPENAI_API_KEY."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": MODEL,
            "max_retries": 0,
            "max_tokens": 200,
            "temperature": 0,
            # So small a model says the same for ever inside a JSON string, if it is let.
            "frequency_penalty": 1,
            "stream_usage": True,
        }

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return MODEL

    @property
    def supports_json_mode(self) -> bool:
        return True
