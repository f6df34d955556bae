"""Keys and the tenants they stand for: nothing in a body, a header or an answer crosses them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from intaglio.errors import ConfigError, ContextQuotaError, UnknownContextError
from intaglio.serve.api_error import ApiError
from intaglio.serve.keys import Caller, KeyRing

Serve = Callable[..., Any]
FIRST, SECOND, ADMIN = "first-key-0001", "second-key-0002", "admin-key-0003"


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    path = tmp_path / "keys"
    path.write_text(f"# who\n{FIRST} one\n\n{SECOND} two # the other\n{ADMIN} ops admin\n")
    return KeyRing.from_file(path)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_a_key_is_its_tenant_and_anything_else_is_nobody(keys: KeyRing) -> None:
    assert keys.required
    assert keys.caller(f"Bearer {FIRST}") == Caller("one", admin=False)
    assert keys.caller(f"bearer {SECOND}") == Caller("two", admin=False)
    assert keys.caller(f"Bearer {ADMIN}") == Caller("ops", admin=True)
    for wrong in (
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {FIRST}",
        FIRST,
        f"Bearer {FIRST}x",
        "Bearer \udcff",
    ):
        with pytest.raises(ApiError) as refused:
            keys.caller(wrong)
        assert refused.value.status == 401
    assert KeyRing().caller(None) == Caller("", admin=True)


@pytest.mark.parametrize(
    "text", ["short one", f"{FIRST}", f"{FIRST} a b c", f"{FIRST} a\n{FIRST} b", "# none", ""]
)
def test_a_wrong_file_of_keys_is_refused_without_showing_a_key(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        KeyRing.from_file(path)
    assert FIRST not in str(refused.value)
    with pytest.raises(ConfigError):
        KeyRing.from_file(tmp_path / "absent")


def test_routes_need_a_key_and_the_servers_own_an_admin(
    serve: Serve, web: ModuleType, keys: KeyRing, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with web.client(serve(keys=keys)) as http:
            for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/v1/caches")):
                answer = await http.request(method, path, json={"prompt": "a"})
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert (await http.get("/health")).status_code == 200
            for path in ("/metrics", "/intaglio/effective"):
                statuses = [
                    (await http.get(path, headers=headers)).status_code
                    for headers in ({}, bearer(FIRST), bearer(ADMIN))
                ]
                assert statuses == [401, 403, 200]
            answer = await http.post("/v1/completions", json={"prompt": "a"}, headers=bearer(FIRST))
            assert answer.status_code == 200
            for field in ("tenant", "extra_body", "cache_salt"):
                answer = await http.post(
                    "/v1/completions", json={"prompt": "a", field: "two"}, headers=bearer(FIRST)
                )
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)

    asyncio.run(go())
    assert not any(key in caplog.text for key in (FIRST, SECOND, ADMIN))


class Contexts:
    """A context cache as the engine offers it, without an engine: it records what it was asked."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], SimpleNamespace] = {}

    def create(
        self, prompt: Any, *, tenant: str = "", ttl_s: Any = None, name: Any = None
    ) -> SimpleNamespace:
        if name == "huge":
            raise ContextQuotaError("the quota is used up; delete a context", field="prompt")
        info = SimpleNamespace(
            id=f"ctx-{len(self.kept)}",
            tenant=tenant,
            name=name,
            tokens=len(prompt),
            bytes=8,
            created_utc="2026-01-02T03:04:05Z",
            expires_utc=f"+{ttl_s}",
            version=1,
            sha256="0" * 64,
        )
        self.kept[tenant, info.id] = info
        return info

    def get(self, name: str, tenant: str) -> SimpleNamespace:
        if (tenant, name) not in self.kept:
            raise UnknownContextError("there is no such context", field="context")
        return self.kept[tenant, name]

    def list(self, tenant: str) -> list[SimpleNamespace]:
        return [info for (owner, _), info in self.kept.items() if owner == tenant]

    def delete(self, name: str, tenant: str) -> None:
        self.get(name, tenant)
        del self.kept[tenant, name]

    def refresh(self, name: str, tenant: str, ttl_s: float) -> SimpleNamespace:
        info = self.get(name, tenant)
        info.expires_utc = f"+{ttl_s}"
        return info


def test_contexts_belong_to_the_keys_tenant(serve: Serve, web: ModuleType, keys: KeyRing) -> None:
    async def go() -> None:
        service = serve(keys=keys)
        service.current.engine.contexts = Contexts()
        one, two = bearer(FIRST), bearer(SECOND)
        async with web.client(service) as http:
            made = await http.post(
                "/v1/caches", json={"prompt": "text", "ttl_s": 60, "name": "n"}, headers=one
            )
            assert made.status_code == 201
            document = made.json()
            assert (document["tokens"], document["expires_utc"]) == (4, "+60.0")
            assert "tenant" not in document
            path = f"/v1/caches/{document['id']}"
            assert (await http.get(path, headers=one)).json() == document
            assert (await http.get("/v1/caches", headers=one)).json()["data"] == [document]
            assert (await http.get("/v1/caches", headers=two)).json()["data"] == []
            foreign = [
                await http.get(path, headers=two),
                await http.delete(path, headers=two),
                await http.post(path, json={"ttl_s": 1}, headers=two),
                await http.get("/v1/caches/none", headers=one),
            ]
            assert {answer.status_code for answer in foreign} == {404}
            assert len({answer.text for answer in foreign}) == 1
            refreshed = await http.post(path, json={"ttl_s": 7}, headers=one)
            assert refreshed.json()["expires_utc"] == "+7.0"
            gone = await http.delete(path, headers=one)
            assert gone.json() == {"id": document["id"], "object": "cache", "deleted": True}
            assert (await http.get(path, headers=one)).status_code == 404
            full = await http.post("/v1/caches", json={"prompt": "t", "name": "huge"}, headers=one)
            assert (full.status_code, full.json()["error"]["code"]) == (429, "context_quota")
            assert service.current.places.taken == 0

    asyncio.run(go())


def test_every_request_carries_its_keys_tenant_and_context_to_the_engine(
    serve: Serve, web: ModuleType, keys: KeyRing
) -> None:
    async def go() -> None:
        service = serve(keys=keys)
        seen: list[tuple[str, str | None]] = []
        engine = service.current.engine
        original = engine.add

        def watched(*arguments: Any, tenant: str, context: str | None, **options: Any) -> str:
            seen.append((tenant, context))
            return str(original(*arguments, tenant=tenant, **options))

        engine.add = watched
        async with web.client(service) as http:
            for key in (FIRST, SECOND):
                fields = {"prompt": ["a", "b"], "context": "ctx-1", "max_tokens": 1}
                answer = await http.post("/v1/completions", json=fields, headers=bearer(key))
                assert answer.status_code == 200
        assert seen == [("one", "ctx-1")] * 2 + [("two", "ctx-1")] * 2

    asyncio.run(go())
