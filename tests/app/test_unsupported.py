"""Fields that ask for what this server does not do: a refusal that names the field, never silence."""

from __future__ import annotations

import pytest

from tests.app.api import CHAT, COMPLETIONS, HI, ROUTES, Api, Json, error_message, valid_body

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
JSON_FORMAT = {"type": "json_object"}
UNSUPPORTED: dict[str, list[tuple[Json, str]]] = {
    CHAT: [
        ({"tools": [TOOL]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"messages": [*HI, {"role": "tool", "content": "18C", "tool_call_id": "c"}]}, "tool_calls"),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}]},
            "tool_calls",
        ),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
    COMPLETIONS: [
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 3, "n": 2}, "best_of"),
    ],
}
UNSUPPORTED_ANYWHERE: list[tuple[Json, str]] = [
    ({"response_format": JSON_FORMAT}, "response_format"),
    ({"response_format": {}}, "response_format"),
    ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 0}, "logprobs"),
    ({"logprobs": 2}, "logprobs"),
    ({"prompt_logprobs": 0}, "prompt_logprobs"),
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("route", ROUTES)
async def test_what_is_not_supported_is_refused_by_name(api: Api, route: str, stream: bool) -> None:
    for fields, name in UNSUPPORTED[route] + UNSUPPORTED_ANYWHERE:
        response = await api.post(route, valid_body(route, **{**fields, "stream": stream}))
        assert response.status_code == 400, fields
        assert error_message(response) == f"{name} is not supported by this server"
        if api.dialect.openai_errors:
            assert response.json()["error"]["param"] == name
    assert api.graph.prompts == []
    await api.assert_still_works()


async def test_asking_for_nothing_is_supported(api: Api) -> None:
    """Clients send the defaults of what they do not use."""
    await api.ask(
        CHAT,
        tools=[],
        tool_choice="auto",
        parallel_tool_calls=True,
        response_format={"type": "text"},
        structured_outputs={},
        logprobs=False,
        reasoning_effort="none",
        include_reasoning=True,
    )
    await api.ask(COMPLETIONS, echo=False, suffix="", best_of=1, logprobs=None)
    await api.ask(COMPLETIONS, n=2, best_of=2)
