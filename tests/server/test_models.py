"""Several models: their names, loading when they are needed, and a memory that holds one of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.servers import TINY, Site, serve_tiny, tiny_spec_of, wait_until
from octavo import AsyncLLM
from octavo.core.errors import ModelNotFoundError
from octavo.server.config import ModelSpec
from octavo.server.memory import share_for, weight_bytes
from octavo.server.models import ModelRegistry, public_name

CHAT = "/v1/chat/completions"


@pytest.fixture
def two(tiny_gguf: Callable[..., Path]) -> list[ModelSpec]:
    """Models "a" and "b" of different architectures."""
    return [tiny_spec_of(tiny_gguf("llama"), "a"), tiny_spec_of(tiny_gguf("qwen2"), "b", "b-alias")]


def states(site: Site) -> list[str]:
    return [model["state"] for model in site.http.get("/load").json()["models"]]


def test_the_second_is_loaded_when_it_is_asked_for(two: list[ModelSpec]) -> None:
    with serve_tiny(*two) as site:
        assert states(site) == ["loaded", "unloaded"]
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: site.chat(model="b-alias"), range(4)))
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.json()["model"] for answer in answers} == {"b-alias"}
        assert states(site) == ["loaded", "loaded"]
        own = site.chat(model="a").json()["choices"][0]["message"]["content"]
        assert own != answers[0].json()["choices"][0]["message"]["content"]
        assert site.chat().json()["model"] == "a", "without a name it is the first"
        listed = {model["id"]: model["root"] for model in site.http.get("/v1/models").json()["data"]}
        assert listed == {"a": "a", "b": "b", "b-alias": "b"}


def test_all_who_wait_for_a_model_load_it_once(two: list[ModelSpec]) -> None:
    made: list[str] = []

    def make(reference: str, **options: Any) -> AsyncLLM:
        made.append(reference)
        return AsyncLLM(reference, **options)

    with serve_tiny(registry=ModelRegistry(two, make=make)) as site, ThreadPoolExecutor(8) as pool:
        assert all(each.status_code == 200 for each in pool.map(lambda _: site.chat(model="b"), range(8)))
    assert made == [spec.reference for spec in two]


def test_where_one_fits_the_other_goes(two: list[ModelSpec]) -> None:
    needs = [weight_bytes(spec, download=False) + TINY["kv_cache_bytes"] for spec in two]
    # Room for either and the buffers of a step, not for both.
    registry = ModelRegistry(two, memory_bytes=max(needs) + 1_500_000)
    with serve_tiny(registry=registry) as site:
        for model, expected in (("b", ["unloaded", "loaded"]), ("a", ["loaded", "unloaded"])):
            assert site.chat(model=model).status_code == 200
            assert states(site) == expected


def test_one_that_is_in_use_stays(two: list[ModelSpec]) -> None:
    needs = [weight_bytes(spec, download=False) + TINY["kv_cache_bytes"] for spec in two]
    registry = ModelRegistry(two, memory_bytes=max(needs) + 1_500_000)
    with serve_tiny(registry=registry) as site:

        async def while_used() -> int:
            async with registry.use("a"):
                refused = await asyncio.to_thread(lambda: site.chat(model="b"))
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "out_of_memory"
                assert "GB" in refused.text or "MB" in refused.text
                return int(refused.headers["retry-after"])

        assert site.do(while_used()) >= 1
        assert states(site) == ["loaded", "failed"]
        assert site.chat(model="b").status_code == 200


def test_what_cannot_be_loaded_is_told_without_its_path(two: list[ModelSpec], tmp_path: Path) -> None:
    broken = tmp_path / "secret-place.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    with serve_tiny(two[0], ModelSpec(str(broken), ("broken",), TINY)) as site:
        answer = site.chat(model="broken")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "model_not_loaded"
        assert "secret" not in answer.text
        assert states(site) == ["loaded", "failed"]
        assert site.chat(model="a").status_code == 200


def test_a_first_model_that_cannot_be_loaded_ends_the_server(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"none\.gguf"), serve_tiny(tiny_spec_of(tmp_path / "none.gguf")):
        pass


def test_health_fails_while_the_first_model_loads(two: list[ModelSpec]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    seen: list[httpx.Response] = []

    def make(reference: str, **options: Any) -> AsyncLLM:
        wait_until(lambda: _asked(f"http://127.0.0.1:{port}/health", seen))
        return AsyncLLM(reference, **options)

    with serve_tiny(registry=ModelRegistry(two, make=make), port=port) as site:
        assert seen[0].status_code == 503
        assert seen[0].json() == {"status": "unavailable", "reason": "a is loading"}
        assert site.http.get("/health").status_code == 200


def _asked(url: str, answers: list[httpx.Response]) -> bool:
    try:
        answers.append(httpx.get(url, timeout=None))
    except httpx.ConnectError:
        return False
    return True


def test_memory_is_shared_among_those_that_will_be_loaded(two: list[ModelSpec]) -> None:
    free = [ModelSpec(spec.reference, spec.names, {"backend": "reference"}) for spec in two]
    alone, shared = share_for(free[0], [], 10**8), share_for(free[0], [free[1]], 10**8)
    assert alone.weight_bytes == shared.weight_bytes == weight_bytes(free[0], download=False)
    assert shared.kv_cache_bytes < alone.kv_cache_bytes < 10**8 - alone.weight_bytes
    assert shared.kv_cache_bytes * 2 <= alone.kv_cache_bytes
    assert share_for(two[0], [], 10**8).kv_cache_bytes == TINY["kv_cache_bytes"], "what was given is kept"


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("smollm2", "smollm2"),
        ("org/repo:Q4_K_M", "org/repo:Q4_K_M"),
        ("/secret/dir/Model-7B.Q4_0.gguf", "Model-7B.Q4_0"),
        ("./x.GGUF", "x"),
    ],
)
def test_public_names_hold_no_folders(reference: str, name: str) -> None:
    assert public_name(reference) == name


def test_two_of_one_name_are_refused(two: list[ModelSpec]) -> None:
    with pytest.raises(ModelNotFoundError, match="two models are called 'a'"):
        ModelRegistry([two[0], ModelSpec("x", ("a",))])
