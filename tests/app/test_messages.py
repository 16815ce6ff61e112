"""Forms of messages and prompts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.api import CHAT, COMPLETIONS, HI, Api, Json, error_message, valid_body

MISSING = "missing"


def user(content: Any) -> list[Json]:
    return [{"role": "user", "content": content}]


async def prompt_ids(api: Api, messages: list[Json], **fields: Any) -> list[int]:
    await api.ask(CHAT, messages=messages, **fields)
    return api.graph.requests[-1].prompt_ids


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("messages", "is_schema_fault"),
    [
        ([], False),
        (None, False),
        (MISSING, False),
        (["hi"], True),
        ("hi", True),
        ({"role": "user", "content": "hi"}, True),
        ([HI], True),
        ([None], True),
        ([{}], True),
        ([{"role": "user"}], True),
        (user(None), True),
        ([{"content": "hi"}], True),
        ([{"role": "assistant", "content": None}], True),
        ([{"role": "assistant", "content": None, "tool_calls": []}], True),
        ([*HI, {"role": "user"}], True),
    ],
    ids=str,
)
async def test_messages_that_say_nothing_are_refused(
    api: Api, messages: Any, is_schema_fault: bool, stream: bool
) -> None:
    """Case 25."""
    fields = {} if messages == MISSING else {"messages": messages}
    response = await api.post(CHAT, {**fields, "stream": stream})
    assert response.status_code == (api.schema_status if is_schema_fault else 400)
    assert "messages" in response.text
    assert api.graph.requests == []
    await api.assert_still_works()


async def test_an_empty_text_is_a_message(api: Api) -> None:
    """The template still gives tokens."""
    assert await prompt_ids(api, user("")) == api.ids("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("role", ["root", "USER", "user ", "", "🙂", 1, None, ["user"]])
async def test_unknown_roles_are_refused(api: Api, role: Any) -> None:
    response = await api.post(CHAT, {"messages": [*HI, {"role": role, "content": "x"}]})
    assert response.status_code == api.schema_status
    assert "role" in response.text
    await api.assert_still_works()


@pytest.mark.parametrize(("role", "rendered"), [("system", "system"), ("developer", "system")])
async def test_a_developer_speaks_as_the_system(api: Api, role: str, rendered: str) -> None:
    await api.ask(CHAT, messages=[{"role": role, "content": "x", "name": "Ann"}, *HI])
    first = {"role": rendered, "content": "x", "name": "Ann"}
    assert api.graph.prompts[0].messages == [first, *HI]


@pytest.mark.parametrize(("parts", "text"), [(["Hello"], "Hello"), (["Hel", "lo"], "Hel\nlo"), ([""], "")])
async def test_text_parts_are_joined_by_line_breaks(api: Api, parts: list[str], text: str) -> None:
    """Case 23: one part is the same as a string."""
    content = [{"type": "text", "text": part} for part in parts]
    assert await prompt_ids(api, user(content)) == await prompt_ids(api, user(text))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("part", "name"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "image_url"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "input_audio"),
        ({"type": "text"}, "text"),
        ({"text": "x"}, "type"),
        ({"type": "text", "text": None}, "text"),
        ("x", "content"),
    ],
)
async def test_a_part_that_is_not_text_is_refused_by_name(
    api: Api, part: Any, name: str, stream: bool
) -> None:
    content = [{"type": "text", "text": "What is this?"}, part]
    response = await api.post(CHAT, {"messages": user(content), "stream": stream})
    assert response.status_code == api.schema_status
    said = response.json()["error"]["message"] if api.dialect.openai_errors else response.text
    assert name in said
    await api.assert_still_works()


async def test_an_empty_list_of_parts_is_refused(api: Api) -> None:
    response = await api.post(CHAT, {"messages": user([])})
    assert response.status_code == api.schema_status


@pytest.mark.parametrize("dialect", ["pypto-serving", "mini-sglang"])
async def test_messages_go_before_a_raw_prompt(api: Api) -> None:
    assert await prompt_ids(api, HI, prompt="Once") == await prompt_ids(api, HI)


async def test_template_kwargs_are_passed_on(api: Api) -> None:
    await api.ask(CHAT, chat_template_kwargs={"enable_thinking": False, "depth": [1, {"a": None}]})
    assert api.graph.prompts[0].template_kwargs == {"enable_thinking": False, "depth": [1, {"a": None}]}
    assert api.graph.prompts[0].add_special_tokens is False


@pytest.mark.parametrize(
    "name", ["tools", "messages", "conversation", "tokenize", "add_generation_prompt", "chat_template"]
)
async def test_template_kwargs_may_not_replace_what_the_server_sets(api: Api, name: str) -> None:
    response = await api.post(CHAT, valid_body(CHAT, chat_template_kwargs={name: True}))
    assert response.status_code == 400
    assert f"chat_template_kwargs may not set {name}" in error_message(response)
    await api.assert_still_works()


@pytest.mark.parametrize("name", ["return_dict", "return_tensors", "padding", "continue_final_message"])
async def test_template_kwargs_that_the_renderer_knows_never_fail(api: Api, name: str) -> None:
    response = await api.post(CHAT, valid_body(CHAT, chat_template_kwargs={name: True}))
    assert response.status_code in (200, 400), response.text
    await api.assert_still_works()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2], [3]], [[7]]], ids=str)
async def test_token_ids_are_the_prompt_as_they_are(api: Api, prompt: list[Any], stream: bool) -> None:
    """Case 37."""
    response = await api.post(COMPLETIONS, {"prompt": prompt, "stream": stream})
    assert response.status_code == 200
    expected = prompt if isinstance(prompt[0], list) else [prompt]
    assert [request.prompt_ids for request in api.graph.requests] == expected
    assert api.graph.prompts == []


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("prompt", "is_schema_fault"),
    [
        ([], True),
        ([[]], True),
        ([[1], []], True),
        ([1, "a"], True),
        (["a", 1], True),
        ([1.5], True),
        ([1.0], True),
        ([True], True),
        ([None], True),
        ([[1], "a"], True),
        ([[[1]]], True),
        ([-1], False),
        ([1, 999_999_999, 1], False),
        ([[1], [2**70]], True),
    ],
    ids=str,
)
async def test_wrong_token_ids_are_refused(
    api: Api, prompt: list[Any], is_schema_fault: bool, stream: bool
) -> None:
    response = await api.post(COMPLETIONS, {"prompt": prompt, "stream": stream})
    assert response.status_code == (api.schema_status if is_schema_fault else 400)
    assert "prompt" in response.text
    assert api.graph.requests == []
    await api.assert_still_works()


@pytest.mark.parametrize("prompt", [MISSING, None, ""])
async def test_the_default_prompt_is_empty(api: Api, prompt: Any) -> None:
    """It is refused here only since this model has no token to begin with."""
    response = await api.post(COMPLETIONS, {} if prompt == MISSING else {"prompt": prompt})
    assert response.status_code == 400
    assert "the prompt is empty" in error_message(response)
    await api.assert_still_works()
