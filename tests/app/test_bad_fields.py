"""Every field of every body with values of wrong types and out of range."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.app.api import CHAT, COMPLETIONS, ROUTES, Api, valid_body
from tests.app.schema_cases import HUGE, all_cases, cases_for, fields_of


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("route", "field"), all_cases())
async def test_wrong_values_are_refused_naming_the_field(
    api: Api, route: str, field: str, stream: bool
) -> None:
    cases = cases_for(route, field)
    assert cases
    for case in cases:
        body = {**valid_body(route, stream=stream), **case.fields}
        response = await api.post(route, body)
        assert response.status_code == api.schema_status, (body, response.text)
        assert len(response.content) < 16_000
        if api.dialect.openai_errors:
            error = response.json()["error"]
            assert error["param"].startswith(".".join(map(str, case.loc)))
            assert error["type"] == "invalid_request_error"
        else:
            locations = [tuple(detail["loc"][1 : len(case.loc) + 1]) for detail in response.json()["detail"]]
            assert set(locations) == {case.loc}
    assert api.graph.requests == []
    await api.assert_still_works()


def test_the_cases_cover_each_kind_of_fault() -> None:
    """The generator does what it is for."""
    values = {json.dumps(case.fields) for route, field in all_cases() for case in cases_for(route, field)}
    for fields in (
        {"temperature": 2.125},
        {"temperature": "x"},
        {"top_p": 0},
        {"top_k": 0.5},
        {"max_tokens": 1e3},
        {"max_tokens": 0},
        {"max_tokens": True},
        {"n": 129},
        {"stop": ""},
        {"stop": [""]},
        {"logit_bias": {"0": 100.125}},
        {"stream_options": True},
        {"reasoning_effort": "no such value"},
        {"prompt": [True]},
        {"messages": ["x"]},
        {"messages": [{"role": "no such value", "content": "hi"}]},
    ):
        assert json.dumps(fields) in values


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("number", HUGE, ids=lambda number: f"{len(str(number))}-digits")
async def test_huge_numbers_anywhere_never_fail(api: Api, route: str, stream: bool, number: int) -> None:
    for field in fields_of(route):
        for value in (number, [number], {"0": number}):
            body = json.dumps({**valid_body(route, stream=stream), field: value}).encode()
            response = await api.post_raw(route, body)
            assert response.status_code in (200, 400, api.schema_status), (field, response.text)
            assert len(response.content) < 16_000
    await api.assert_still_works()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": -0.1}, ("temperature", "0")),
        ({"temperature": 2.5}, ("temperature", "2")),
        ({"top_p": 0}, ("top_p", "0")),
        ({"top_p": 1.1}, ("top_p", "1")),
        ({"top_k": -2}, ("top_k", "-1")),
        ({"min_p": 2}, ("min_p", "1")),
        ({"presence_penalty": 3}, ("presence_penalty", "2")),
        ({"repetition_penalty": -1}, ("repetition_penalty", "0")),
        ({"max_tokens": -1}, ("max_tokens", "0")),
    ],
)
async def test_the_message_names_field_and_limit(
    api: Api, fields: dict[str, Any], words: tuple[str, ...]
) -> None:
    """Case 43."""
    response = await api.post(CHAT, valid_body(CHAT, **fields))
    assert response.status_code == api.schema_status
    if api.dialect.openai_errors:
        said = response.json()["error"]["message"]
    else:
        (detail,) = response.json()["detail"]
        said = f"{detail['loc']} {detail['msg']}"
    assert all(word in said for word in words)


@pytest.mark.parametrize("item", [{}, 1.5, None, "x", [[]], "y" * 1000], ids=str)
async def test_a_long_wrong_prompt_gets_a_short_answer(api: Api, item: Any) -> None:
    """Case 59. The first item makes the list wrong whatever the others are."""
    response = await api.post(
        COMPLETIONS, {"prompt": [True, *[item] * (1_000 if item == "y" * 1000 else 100_000)]}
    )
    assert response.status_code == api.schema_status
    assert len(response.content) < 64 * 1024
    await api.assert_still_works()


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": ["hi"] * 100_000},
        {"messages": [{"role": "x" * 10_000, "content": [{}] * 1000}] * 100},
        {"logit_bias": {str(i): "x" * 1000 for i in range(1000)}},
        {"logit_bias": {str(i): 1 for i in range(100_000)}},
        {"stop": [1] * 100_000},
        {"model": "m" * 1_000_000},
    ],
    ids=["messages", "parts", "bias", "biases", "stops", "model"],
)
async def test_many_faults_are_told_in_few_words(api: Api, fields: dict[str, Any]) -> None:
    response = await api.post(CHAT, valid_body(CHAT, **fields))
    assert response.status_code == api.schema_status
    assert len(response.content) < 16_000
    if not api.dialect.openai_errors:
        assert len(response.json()["detail"]) <= 10
    await api.assert_still_works()


async def test_unknown_fields_are_ignored(api: Api) -> None:
    for route in ROUTES:
        await api.ask(route, no_such_field={"a": [1]}, store=False)
