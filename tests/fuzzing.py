"""Requests made from the served OpenAPI schema, sent over whichever transport the schema was loaded with."""

from __future__ import annotations

import json
from collections.abc import Callable

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

READS = [("GET", "/health"), ("GET", "/v1/models"), ("GET", "/v1/models/{model_id}")]
GENERATIONS = [("POST", "/v1/completions"), ("POST", "/v1/chat/completions")]
CASES = [
    *((*operation, GenerationMode.POSITIVE) for operation in READS + GENERATIONS),
    *((*operation, GenerationMode.NEGATIVE) for operation in GENERATIONS),  # a read has nothing to break
]


def fuzz(
    schema: schemathesis.BaseSchema,
    method: str,
    path: str,
    mode: GenerationMode,
    max_examples: int,
    after_each: Callable[[], None],
) -> None:
    """Send requests that fit the schema, or in negative mode break it somewhere, and check each answer."""

    @settings(max_examples=max_examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        response = case.call()
        assert response.status_code < 500, response.text
        content_type = response.headers.get("content-type", [""])[0]
        if content_type.startswith("text/event-stream"):
            assert response.content.endswith(b"\n\ndata: [DONE]\n\n")
        elif response.content:
            json.loads(response.content)
        after_each()

    send()
