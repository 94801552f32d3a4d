"""/openapi.json is a description, and a true one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from helpers.servers import Site


@pytest.fixture
def described(site: Site) -> dict[str, Any]:
    found: dict[str, Any] = site.http.get("/openapi.json").json()
    return found


def test_every_route_is_in_it(site: Site, described: dict[str, Any]) -> None:
    from octavo.server.app import create_app

    app = create_app(site.service)
    told = {(path, method.upper()) for path, methods in described["paths"].items() for method in methods}
    served = {(re.sub(r":path\}", "}", each.path), each.method) for each in app.endpoints}
    assert served - {("/openapi.json", "GET")} <= told


def test_references_lead_somewhere(described: dict[str, Any]) -> None:
    names = set(re.findall(r"#/components/schemas/([^\"']+)", str(described)))
    assert names
    assert names <= described["components"]["schemas"].keys()


def test_requests_are_closed_and_answers_are_listed(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    for path in ("chat/completions", "completions", "responses", "embeddings"):
        body = described["paths"][f"/v1/{path}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert schemas[body["$ref"].rpartition("/")[2]]["additionalProperties"] is False
    chat = described["paths"]["/v1/chat/completions"]["post"]
    assert {"200", "400", "404", "413", "503"} <= chat["responses"].keys()
    assert {"application/json", "text/event-stream"} <= chat["responses"]["200"]["content"].keys()


def test_limits_are_those_that_are_checked(site: Site, described: dict[str, Any]) -> None:
    """Of each number with limits, what lies just beyond is refused by name."""
    properties = described["components"]["schemas"]["CompletionRequest"]["properties"]
    checked = 0
    for name, schema in properties.items():
        for each in schema.get("anyOf", []):
            for limit, step in (("minimum", -1), ("maximum", 1)):
                if limit in each and each.get("type") in ("integer", "number") and name != "priority":
                    answer = site.post("/v1/completions", {"prompt": "x", "max_tokens": 1, name: each[limit] + step})
                    assert answer.status_code == 400, (name, each[limit] + step)
                    assert answer.json()["error"]["param"] == name
                    checked += 1
    assert checked > 15
