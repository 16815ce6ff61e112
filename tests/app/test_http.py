"""Methods, paths, health and the list of models."""

from __future__ import annotations

import pytest

from app.dialects import DialectName
from tests.app.api import ROUTES, Api, error_message, valid_body
from tests.app.conftest import MakeApi
from tests.tiny_tokenizers import MAX_MODEL_LEN, SERVED_NAME

READ = ("/health", "/v1/models", f"/v1/models/{SERVED_NAME}")


@pytest.mark.parametrize("path", READ)
async def test_head_is_get_without_a_body(api: Api, path: str) -> None:
    """Case 61: load balancers ask so."""
    response = await api.http.head(path)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_health_is_503_while_no_replica_can_serve(
    make_api: MakeApi, dialect: DialectName, method: str
) -> None:
    api = make_api(dialect)
    assert (await api.http.get("/health")).json() == {"status": "ok"}
    api.graph.ready = False
    response = await api.http.request(method, "/health")
    assert response.status_code == 503
    if method == "GET":
        assert response.json() == {"status": "not_ready"}


async def test_the_models(api: Api) -> None:
    listed = (await api.http.get("/v1/models")).json()
    (card,) = listed.pop("data")
    assert listed == {"object": "list"}
    assert (await api.http.get(f"/v1/models/{SERVED_NAME}")).json() == card
    assert card.pop("created") > 1_500_000_000
    assert card == {
        "id": SERVED_NAME,
        "object": "model",
        "owned_by": "servegraph",
        "max_model_len": MAX_MODEL_LEN,
    }


@pytest.mark.parametrize("name", ["nope", "a/b", "a%2Fb", "%00", "x" * 10_000, "Tiny", "tiny%20"])
async def test_a_model_that_is_not_served(api: Api, name: str) -> None:
    """Case 63."""
    response = await api.http.get(f"/v1/models/{name}")
    assert response.status_code == 404
    assert "does not exist" in error_message(response)
    if api.dialect.openai_errors:
        assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("model", [5, True, [], {}, "x" * 10_240])
async def test_a_model_name_that_is_none(api: Api, route: str, model: object, stream: bool) -> None:
    response = await api.post(route, valid_body(route, model=model, stream=stream))
    assert response.status_code == api.schema_status
    assert "model" in response.text
    assert len(response.content) < 1000
    await api.assert_still_works()


@pytest.mark.parametrize("route", ROUTES)
async def test_an_empty_model_name_never_fails(api: Api, route: str) -> None:
    response = await api.post(route, valid_body(route, model=""))
    if api.dialect.checks_model:
        assert response.status_code == 404
    else:
        assert response.json()["model"] == SERVED_NAME


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        *[(method, route, "POST") for method in ("GET", "HEAD", "PUT", "DELETE") for route in ROUTES],
        *[(method, path, "GET") for method in ("POST", "PATCH") for path in READ],  # which implies HEAD
    ],
)
async def test_a_wrong_method_is_405_and_says_what_is_allowed(
    api: Api, method: str, path: str, allowed: str
) -> None:
    response = await api.http.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == allowed
    if method != "HEAD":
        assert "Method Not Allowed" in str(response.json())


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v1/chat", "//v1/models", "/v1/models/", *[f"{route}/" for route in ROUTES]]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_wrong_path_is_an_error_in_json_and_never_a_redirect(
    api: Api, method: str, path: str
) -> None:
    """A redirect would lose the body of a POST."""
    url = f"http://test{path}"
    response = await api.http.request(method, url, json={} if method == "POST" else None)
    assert response.status_code in (404, 405)
    body = response.json()
    if api.dialect.openai_errors:
        assert body["error"]["type"] == "invalid_request_error"
        error_message(response)
    else:
        assert body.keys() in ({"detail"}, {"object", "message"})
    await api.assert_still_works()
