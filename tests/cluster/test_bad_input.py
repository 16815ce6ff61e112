"""Requests made from the served schema, over real HTTP to a real engine: no server error, nothing left."""

from __future__ import annotations

import pytest
import schemathesis
from schemathesis import GenerationMode

from tests.cluster.serve_cluster import ServedApp, wait_until
from tests.fuzzing import CASES, fuzz


@pytest.mark.parametrize(("method", "path", "mode"), CASES)
def test_nothing_makes_a_server_error(tiny: ServedApp, method: str, path: str, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{tiny.url}/openapi.json")
    fuzz(schema, method, path, mode, 25, lambda: None)
    wait_until(tiny.is_idle, 5)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "hello " * 500},
        {"prompt": [1] * 100_000},
        {"prompt": [0, 10**9]},
        {"prompt": [-1]},
        {"prompt": ""},
        {"prompt": []},
        {"prompt": "x", "max_tokens": 0},
        {"prompt": "x", "stop_token_ids": [10**9]},
        {"prompt": "x", "logit_bias": {"999999999": 1}},
    ],
    ids=lambda body: repr(body)[:40],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_the_engine_cannot_do_is_refused_before_the_headers(
    tiny: ServedApp, body: dict[str, object], stream: bool
) -> None:
    response = tiny.post("/v1/completions", {**body, "stream": stream})
    assert response.status_code in (400, 422)
    assert response.headers["content-type"] == "application/json"
    assert tiny.is_idle()
    assert tiny.post("/v1/completions", {"prompt": "x"}).status_code == 200


def test_more_tokens_than_the_context_holds_are_capped_to_the_room_left(tiny: ServedApp) -> None:
    (card,) = tiny.get("/v1/models").json()["data"]
    answer = tiny.post("/v1/completions", {"prompt": "x", "max_tokens": 10**6}).json()
    assert answer["usage"]["total_tokens"] == card["max_model_len"]
    assert answer["choices"][0]["finish_reason"] == "length"
