"""What a chat may ask of the form of its answer: JSON of a schema, and calls of functions."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from mtplx_kernel.server.errors import Complaint
from mtplx_kernel.server.records import Record

MOST_TOOLS = 128
DEEPEST = 100
NAME = r"^[a-zA-Z0-9_-]{1,64}$"
CHOICES = ("none", "auto", "required")


def check_schema(value: Any) -> Any:
    """An object that is not nested without end."""
    level = [value]
    for _ in range(DEEPEST):
        level = [part for each in level for part in _parts(each)]
    if level:
        raise Complaint(f"a schema must be nested at most {DEEPEST} deep")
    return value


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


Schema = Annotated[dict[str, Any] | None, BeforeValidator(check_schema)]


class JSONSchema(Record):
    """A schema that the answer must fit."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    schema_: Schema = Field(None, alias="schema")
    strict: bool | None = Field(None, description="Without effect: the schema always holds.")


class ResponseFormat(Record):
    """How the answer is written."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchema | None = None

    @model_validator(mode="after")
    def _together(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise Complaint(
                "json_schema is to be given with the type json_schema, and with no other",
                field="json_schema",
            )
        return self

    @property
    def schema_text(self) -> dict[str, Any] | None:
        """The schema of the answer; None where it is free."""
        if self.type == "text":
            return None
        given = None if self.json_schema is None else self.json_schema.schema_
        return {"type": "object"} if given is None else given


class Function(Record):
    """A function that the model may call."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: Schema = Field(
        None, description="A JSON schema of an object; without it there are no arguments."
    )
    strict: bool | None = Field(None, description="Whether calls must fit the schema.")

    @model_validator(mode="after")
    def _of_an_object(self) -> Function:
        if (self.parameters or {}).get("type", "object") != "object":
            raise Complaint("parameters must be a JSON schema of type object", field="parameters")
        return self


class Tool(Record):
    """A tool: a function."""

    type: Literal["function"]
    function: Function


class FunctionName(Record):
    """The name of a function."""

    name: str


class NamedTool(Record):
    """The tool that is to be called."""

    type: Literal["function"]
    function: FunctionName


class CalledFunction(Record):
    """What was called, with its arguments as JSON text."""

    name: str = Field(pattern=NAME)
    arguments: str

    @model_validator(mode="after")
    def _of_an_object(self) -> CalledFunction:
        if not isinstance(arguments_of(self.arguments), dict):
            raise Complaint("arguments must be the JSON text of an object", field="arguments")
        return self


class ToolCall(Record):
    """A call in a message that the model said before."""

    id: str = Field(min_length=1)
    type: Literal["function"]
    function: CalledFunction


def arguments_of(text: str) -> Any:
    """What JSON text holds; None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def check_choice(value: Any) -> Any:
    """A word, or a function by its name."""
    if value is None or (isinstance(value, str) and value in CHOICES):
        return value
    function = value.get("function") if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or value != {"type": "function", "function": {"name": name}}:
        raise Complaint(
            'tool_choice must be none, auto, required, or {"type": "function", "function": '
            '{"name": NAME}}'
        )
    return value


def check_tools(value: Any) -> Any:
    """Functions, each of a name of its own."""
    if value is None:
        return value
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_TOOLS:
        raise Complaint(f"tools must be 1 to {MOST_TOOLS} functions")
    names = []
    for at, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function":
            raise Complaint(f"tool {at} must be an object with type function and a function")
        name = function.get("name")
        if not isinstance(name, str) or not re.fullmatch(NAME, name) or name in names:
            raise Complaint(
                f"tool {at} must have a name of its own: 1 to 64 letters, digits, _ and -"
            )
        names.append(name)
    return value


Tools = Annotated[Annotated[list[Tool], Field(fail_fast=True)] | None, BeforeValidator(check_tools)]
ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedTool | None, BeforeValidator(check_choice)
]
