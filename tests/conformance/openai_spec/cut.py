"""Cuts OpenAI's published description down to the routes that the endpoint has, without prose.

`python conformance/openai_spec/cut.py openapi.json` reads the whole one, openapi.json of
github.com/openai/openai-openapi, and writes cut.json beside this file.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROUTES = {
    "/chat/completions": ("post",),
    "/completions": ("post",),
    "/models": ("get",),
    "/models/{model}": ("get",),
}
PROSE = {"description", "summary", "example", "examples", "title", "externalDocs", "tags"}
REFERENCE = re.compile(r'"#/components/(\w+)/([^"]+)"')


def without_prose(value: Any, *, names: bool = False) -> Any:
    """The same without what is written for readers; below `properties` all names are fields."""
    if isinstance(value, list):
        return [without_prose(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: without_prose(item, names=key in ("properties", "responses", "schemas") and not names)
        for key, item in value.items()
        if names or not (key in PROSE or key.startswith("x-"))
    }


def cut(whole: dict[str, Any]) -> dict[str, Any]:
    """The routes, and every component that they lead to."""
    paths = {
        path: {method: whole["paths"][path][method] for method in methods}
        for path, methods in ROUTES.items()
    }
    kept: dict[str, dict[str, Any]] = {}
    waiting = [json.dumps(paths)]
    while waiting:
        for room, name in REFERENCE.findall(waiting.pop()):
            if name not in kept.setdefault(room, {}):
                kept[room][name] = whole["components"][room][name]
                waiting.append(json.dumps(kept[room][name]))
    small: dict[str, Any] = without_prose({"paths": paths, "components": kept})
    for methods in small["paths"].values():
        for route in methods.values():
            for response in route["responses"].values():
                response["description"] = ""  # the one piece of prose that a description must have
    info = {name: whole["info"][name] for name in ("title", "version", "license")}
    return {"openapi": whole["openapi"], "info": info, **small}


if __name__ == "__main__":
    found = cut(json.loads(Path(sys.argv[1]).read_text()))
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    Path(__file__).with_name("cut.json").write_text(text)
