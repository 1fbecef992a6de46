"""The reference page at /docs, written from the API's description; it loads nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'"
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: 13px; }
pre { padding: .7rem 1rem; border: 1px solid #8886; border-radius: 6px; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-top: 1px solid #8884; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8886; }
.method { font-weight: 600; margin-right: .5rem; }
"""
EXAMPLE = """curl BASE/v1/chat/completions \\
  -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" \\
  -d '{"model": "MODEL", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}'"""
LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
}


def page(openapi: dict[str, Any]) -> str:
    """The page.

    Parameters
    ----------
    openapi
        The description of the API.
    """
    info = openapi["info"]
    title = f"{escape(info['title'])} {escape(info['version'])}"
    routes = "".join(_routes(openapi))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1><p>{escape(info['description'])}</p>"
        f"<p><code>GET /v1/models</code> tells the model's name. The whole description, for "
        f'programs, is <a href="openapi.json">openapi.json</a>.</p><pre>{escape(EXAMPLE)}</pre>'
        f"{routes}</body></html>"
    )


def _routes(openapi: dict[str, Any]) -> Iterator[str]:
    schemas = openapi["components"]["schemas"]
    told: dict[str, str] = {}
    for path, methods in openapi["paths"].items():
        for method, route in methods.items():
            about = route.get("description") or route.get("summary", "")
            yield (
                f'<h2><span class="method">{escape(method.upper())}</span>'
                f"<code>{escape(path)}</code></h2><p>{escape(about)}</p>"
            )
            for body in route.get("requestBody", {}).get("content", {}).values():
                name = body["schema"]["$ref"].rpartition("/")[2]
                if name in told:
                    yield f"<p>Takes what <code>{escape(told[name])}</code> takes.</p>"
                else:
                    told[name] = path
                    yield _table(schemas[name], schemas)


def _table(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = []
    for name, field in schema["properties"].items():
        about = [field.get("description", "")] + (["Required."] if name in required else [])
        rows.append(
            f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(field, schemas))}</td>"
            f"<td>{escape(' '.join(part for part in about if part))}</td></tr>"
        )
    return f"<table><tr><th>field</th><th>value</th><th></th></tr>{''.join(rows)}</table>"


def _kind(field: dict[str, Any], schemas: dict[str, Any]) -> str:
    """What a field may hold, in words."""
    if "$ref" in field:
        return _kind(schemas[field["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in field:
        kinds = [_kind(each, schemas) for each in field["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return ", ".join(str(value) for value in field["enum"])
    if "const" in field:
        return str(field["const"])
    if field.get("type") == "array":
        kind = f"list of {_kind(field.get('items', {}), schemas)}"
    elif "properties" in field:
        kind = f"object of {', '.join(field['properties'])}"
    else:
        kind = str(field.get("type", "anything"))
    limits = [text.format(field[name]) for name, text in LIMITS.items() if name in field]
    return ", ".join([kind, *limits])
