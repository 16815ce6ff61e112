"""How a request, the dialect and the server's generation config decide each sampling parameter."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from app.dialects import DialectName
from deployments.engine.config import GenerateConfig
from tests.app.api import CHAT, COMPLETIONS, ROUTES, Api, error_message, valid_body
from tests.app.conftest import MakeApi
from tests.tiny_tokenizers import MAX_MODEL_LEN

ABSENT = object()
SERVER = GenerateConfig(
    max_new_tokens=77,
    temperature=0.25,
    top_p=0.5,
    top_k=40,
    min_p=0.125,
    repetition_penalty=1.5,
    seed=11,
    stop=["X", "YY"],
    ignore_eos=True,
)
# The field's name in SamplingParams, and what it is: server's value, request's value, built-in value.
INHERITED = {
    "temperature": (0.25, 0.75, 0.0),
    "top_p": (0.5, 0.875, 1.0),
    "top_k": (40, 7, 0),
    "min_p": (0.125, 0.0625, 0.0),
    "repetition_penalty": (1.5, 0.5, 1.0),
    "max_tokens": (77, 9, 200),
}
OPENAI_STYLE: tuple[DialectName, ...] = ("mini-sglang", "openai")


async def resolve(api: Api, route: str, field: str, value: object) -> Any:
    """The engine's parameter after a request with, or without, the field."""
    await api.ask(route, **({} if value is ABSENT else {field: value}))
    return getattr(api.graph.requests[-1].params, field)


def default_of(dialect: DialectName, field: str, server: Any) -> Any:
    if field == "temperature" and dialect in OPENAI_STYLE:
        return 1.0
    return 16 if field == "max_tokens" and dialect == "mini-sglang" else server


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("field", INHERITED)
async def test_request_before_dialect_before_server(
    make_api: MakeApi, dialect: DialectName, route: str, field: str
) -> None:
    api = make_api(dialect, generation=SERVER)
    server, requested, _ = INHERITED[field]
    assert await resolve(api, route, field, requested) == requested
    assert await resolve(api, route, field, ABSENT) == default_of(dialect, field, server)
    # A null says nothing, but for top_k, where it is the only way to say "off".
    null = 0 if field == "top_k" else default_of(dialect, field, server)
    assert await resolve(api, route, field, None) == null


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("field", INHERITED)
async def test_defaults_where_the_server_says_nothing(
    make_api: MakeApi, dialect: DialectName, route: str, field: str
) -> None:
    built_in = 256 - 15 if field == "max_tokens" else INHERITED[field][2]
    if field == "max_tokens" and route == COMPLETIONS:
        built_in = 256 - 1  # 256 too, but there is less room behind the prompt
    api = make_api(dialect, generation=GenerateConfig())
    assert await resolve(api, route, field, ABSENT) == default_of(dialect, field, built_in)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("temperature", 0, 0.0),
        ("temperature", 1e-9, 1e-9),
        ("temperature", 2, 2.0),
        ("top_p", 1, 1.0),
        ("top_k", 0, 0),
        ("top_k", -1, 0),
        ("top_k", 10**9, 10**9),
        ("min_p", 0, 0.0),
        ("min_p", 1, 1.0),
        ("presence_penalty", -2, -2.0),
        ("frequency_penalty", 2, 2.0),
        ("repetition_penalty", 2, 2.0),
        ("presence_penalty", None, 0.0),
        ("frequency_penalty", None, 0.0),
        ("min_tokens", None, 0),
        ("min_tokens", 0, 0),
        ("min_tokens", 5, 5),
        ("logit_bias", {"0": -100, "5": 1.5}, ((0, -100.0), (5, 1.5))),
        ("logit_bias", {}, ()),
        ("stop_token_ids", [3, 4], (3, 4)),
        ("stop_token_ids", None, ()),
    ],
)
async def test_values_at_their_limits_reach_the_engine(
    make_api: MakeApi, dialect: DialectName, route: str, field: str, value: Any, expected: Any
) -> None:
    assert await resolve(make_api(dialect, generation=SERVER), route, field, value) == expected


@pytest.mark.parametrize("value", ["12x", "-1", "+1", " 1", "\uff11", "1.0", "", "1" * 500, "9999", "0x1"])
async def test_logit_bias_of_no_token_is_refused(api: Api, value: str) -> None:
    response = await api.post(CHAT, valid_body(CHAT, logit_bias={value: 1}))
    assert response.status_code == 400
    assert "logit_bias" in error_message(response)
    await api.assert_still_works()


@pytest.mark.parametrize("token", [-1, 9999, 2**31, 2**63])
async def test_stop_token_id_of_no_token_is_refused(api: Api, token: int) -> None:
    response = await api.post(CHAT, valid_body(CHAT, stop_token_ids=[0, token]))
    assert response.status_code == 400
    assert f"stop_token_ids: {token}" in error_message(response)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (ABSENT, ("X", "YY")),
        (None, ()),
        ([], ()),
        ("END", ("END",)),
        (["a", "\n\n"], ("a", "\n\n")),
    ],
)
async def test_stop(
    make_api: MakeApi, dialect: DialectName, route: str, stop: Any, expected: tuple[str, ...]
) -> None:
    api = make_api(dialect, generation=SERVER)
    await api.ask(route, **({} if stop is ABSENT else {"stop": stop}))
    assert api.graph.requests[0].stop == expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_completion_tokens": 5}, 5),
        ({"max_completion_tokens": 5, "max_tokens": 9}, 5),
        ({"max_completion_tokens": 9, "max_tokens": 5}, 9),
        ({"max_completion_tokens": None, "max_tokens": 9}, 9),
        ({"max_completion_tokens": 5, "max_tokens": None}, 5),
    ],
)
async def test_max_completion_tokens_goes_before_max_tokens(
    api: Api, limits: dict[str, Any], expected: int
) -> None:
    await api.ask(CHAT, **limits)
    assert api.graph.requests[0].params.max_tokens == expected


@pytest.mark.parametrize("limits", [{"max_tokens": 8}, {"max_tokens": 99, "max_completion_tokens": 8}])
@pytest.mark.parametrize("stream", [True, False])
async def test_min_tokens_above_the_maximum_is_refused(
    api: Api, limits: dict[str, int], stream: bool
) -> None:
    await api.ask(CHAT, min_tokens=8, **limits)
    response = await api.post(CHAT, valid_body(CHAT, min_tokens=9, stream=stream, **limits))
    assert response.status_code == 400
    message = error_message(response)
    assert "min_tokens (9)" in message
    assert "8" in message
    await api.assert_still_works()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("seed", [0, 42, -5, -(2**63), 2**63 - 3])
async def test_each_choice_has_the_next_seed(api: Api, route: str, seed: int) -> None:
    await api.ask(route, seed=seed, n=3)
    assert [request.seed for request in api.graph.requests] == [seed, seed + 1, seed + 2]


@pytest.mark.parametrize(("seed", "from_server"), [(ABSENT, True), (None, False)])
async def test_the_servers_seed(
    make_api: MakeApi, dialect: DialectName, seed: Any, from_server: bool
) -> None:
    """A null asks for a fresh seed."""
    api = make_api(dialect, generation=SERVER)
    await api.ask(CHAT, n=2, **({} if seed is ABSENT else {"seed": seed}))
    assert ([request.seed for request in api.graph.requests] == [11, 12]) is from_server


async def test_seeds_that_nobody_chose_differ(api: Api) -> None:
    await api.ask(CHAT, n=20)
    await api.ask(CHAT, n=20)
    seeds = [request.seed for request in api.graph.requests]
    assert len(set(seeds)) == 40
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert any(b - a != 1 for a, b in pairwise(seeds))


@pytest.mark.parametrize("max_tokens", [MAX_MODEL_LEN, 10_000_000, 2**31, 2**63])
async def test_max_tokens_is_capped_to_the_room_left(
    make_api: MakeApi, dialect: DialectName, max_tokens: int
) -> None:
    """Case 33: the answer fills the context and ends with `length`; min_tokens is capped with it."""
    api = make_api(dialect, "a" * MAX_MODEL_LEN)
    answer = await api.ask(COMPLETIONS, prompt="a" * 200, max_tokens=max_tokens, min_tokens=max_tokens)
    params = api.graph.requests[0].params
    assert (params.max_tokens, params.min_tokens) == (56, 56)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == MAX_MODEL_LEN


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("num_tokens", [MAX_MODEL_LEN, MAX_MODEL_LEN + 1, 1000])
async def test_a_prompt_without_room_for_output_is_refused(api: Api, stream: bool, num_tokens: int) -> None:
    await api.ask(COMPLETIONS, prompt="a" * (MAX_MODEL_LEN - 1))
    for prompt in ("a" * num_tokens, [5] * num_tokens, [[5], [5] * num_tokens]):
        response = await api.post(COMPLETIONS, {"prompt": prompt, "stream": stream})
        assert response.status_code == 400
        message = error_message(response)
        assert str(num_tokens) in message
        assert str(MAX_MODEL_LEN) in message
    await api.assert_still_works()


async def test_priority_reaches_the_engine(api: Api) -> None:
    for priority in (-3, 0, None):
        await api.ask(CHAT, priority=priority)
    assert [request.priority for request in api.graph.requests] == [-3, 0, 0]
