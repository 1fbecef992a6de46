"""The description of the API: complete, and a page that needs nothing from elsewhere."""

from __future__ import annotations

import re
from typing import Any

from mtplx_kernel import __version__
from mtplx_kernel.server.schema import ChatRequest, CompletionRequest
from mtplx_kernel.server.settings import Settings
from tests.server.site import CHAT, HYPER_CHAT, HYPER_TEXT, MODEL, TEXT, Site


def described(site: Site) -> dict[str, Any]:
    found: dict[str, Any] = site.client.get("/openapi.json").json()
    return found


def test_every_route_is_described(site: Site) -> None:
    paths = described(site)["paths"]
    assert {CHAT, TEXT, HYPER_CHAT, HYPER_TEXT, "/v1/models", "/v1/models/{model}"} <= set(paths)
    for path, name in ((CHAT, "ChatRequest"), (HYPER_TEXT, "CompletionRequest")):
        route = paths[path]["post"]
        taken = route["requestBody"]["content"]["application/json"]["schema"]
        assert taken == {"$ref": f"#/components/schemas/{name}"}
        assert set(route["responses"]) == {"200", "default"}


def test_every_route_may_be_refused(site: Site) -> None:
    for routes in described(site)["paths"].values():
        for route in routes.values():
            (told,) = route["responses"]["default"]["content"].items()
            assert told == (
                "application/json",
                {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}},
            )


def test_every_field_is_described(site: Site) -> None:
    schemas = described(site)["components"]["schemas"]
    for record in (ChatRequest, CompletionRequest):
        schema = schemas[record.__name__]
        assert set(schema["properties"]) == set(record.model_fields)
        assert schema["additionalProperties"] is False


def test_references_lead_somewhere(site: Site) -> None:
    found = described(site)
    names = set(re.findall(r"'#/components/schemas/([^']+)'", str(found)))
    assert names
    assert names <= set(found["components"]["schemas"])


def test_it_says_whether_a_token_is_needed(site: Site) -> None:
    assert "security" not in described(site)
    with Site(site.engine, Settings(token="secret")) as guarded:
        found = described(guarded)
    assert found["security"] == [{"token": []}]
    routes = {path: route.get("get", {}) for path, route in found["paths"].items()}
    open_to_all = {path for path, route in routes.items() if route.get("security") == []}
    assert open_to_all == {"/health", "/health/live", "/health/ready"}
    assert "secret" not in str(found)
    free = {
        path
        for path, routes in found["paths"].items()
        if routes.get("get", {}).get("security") == []
    }
    assert free == {"/health", "/health/live", "/health/ready"}


def test_the_page_loads_nothing(site: Site) -> None:
    response = site.client.get("/docs")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    page = response.text
    assert not re.search(r"<script|<link|<img|src=|@import|https?://", page)
    for word in (CHAT, HYPER_TEXT, "generation_mode", "logit_bias", __version__):
        assert word in page


def test_the_model_is_listed(site: Site) -> None:
    answer = site.client.get("/v1/models").json()
    assert answer["object"] == "list"
    (model,) = answer["data"]
    assert list(model) == ["id", "object", "created", "owned_by"]
    assert (model["id"], model["object"]) == (MODEL, "model")
    assert site.client.get(f"/v1/models/{MODEL}").json() == model
