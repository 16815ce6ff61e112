"""Several choices of one request: numbered, generated at once, and failing together."""

from __future__ import annotations

from typing import Any

import pytest

from app.dialects import DialectName
from deployments.engine.request import FinishReason
from tests.app.api import (
    CHAT,
    COMPLETIONS,
    ROUTES,
    Api,
    Json,
    error_message,
    read_events,
    text_of,
    valid_body,
)
from tests.app.conftest import MakeApi
from tests.app.scripted_graph import Script

TEXTS = ("a much longer answer", "b", "cc dd")


@pytest.fixture
def three(make_api: MakeApi, dialect: DialectName) -> Api:
    """Answers the three texts, which end at different times."""
    return make_api(dialect, *TEXTS)


def choices_of(events: list[Json]) -> list[Json]:
    return [choice for event in events for choice in event["choices"]]


def text_of_choice(choice: Json) -> str:
    text: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return text


@pytest.mark.parametrize("route", ROUTES)
async def test_every_index_finishes_once_and_says_nothing_more(three: Api, route: str) -> None:
    """Case 11; then the usage of all choices together."""
    events = await three.stream(route, n=3, ignore_eos=False, stream_options={"include_usage": True})
    assert [event["choices"] == [] for event in events] == [False] * (len(events) - 1) + [True]
    for index, text in enumerate(TEXTS):
        reasons = [choice["finish_reason"] for choice in choices_of(events) if choice["index"] == index]
        assert reasons[-1] is not None
        assert set(reasons[:-1]) == {None}
        assert text_of(events, index) == text
    whole = await three.ask(route, n=3, ignore_eos=False)
    assert events[-1]["usage"] == whole["usage"]
    assert [text_of_choice(choice) for choice in whole["choices"]] == list(TEXTS)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]


async def test_each_index_of_a_chat_stream_begins_with_its_role(three: Api) -> None:
    choices = choices_of(await three.stream(CHAT, n=3))
    for index in range(3):
        first, *others = [choice["delta"] for choice in choices if choice["index"] == index]
        assert first["role"] == "assistant"
        assert all(("role" in delta) is three.dialect.role_on_every_delta for delta in others)


@pytest.mark.parametrize("route", ROUTES)
async def test_choices_are_generated_at_once(three: Api, route: str) -> None:
    """Each begins before the longest has ended."""
    indices = [choice["index"] for choice in choices_of(await three.stream(route, n=3))]
    first_of_each = [indices.index(index) for index in range(3)]
    assert max(first_of_each) < len(indices) - 1 - indices[::-1].index(0)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompts", [["x", "yy"], [[5, 6, 7], [8]]], ids=["texts", "ids"])
async def test_choices_are_numbered_prompt_by_prompt(
    make_api: MakeApi, dialect: DialectName, stream: bool, prompts: list[Any]
) -> None:
    api = make_api(dialect, "a", "b", "c", "d")
    fields = {"prompt": prompts, "n": 2, "seed": 7, "max_tokens": 1}
    if stream:
        events = await api.stream(COMPLETIONS, **fields)
        assert [text_of(events, index) for index in range(4)] == ["a", "b", "c", "d"]
    else:
        answer = await api.ask(COMPLETIONS, **fields)
        assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
            (0, "a"),
            (1, "b"),
            (2, "c"),
            (3, "d"),
        ]
        num_prompt = sum(len(prompt) for prompt in prompts)  # once for each prompt, whatever n is
        assert answer["usage"]["prompt_tokens"] == num_prompt
        assert answer["usage"]["completion_tokens"] == 4
    requests = sorted(api.graph.requests, key=lambda request: request.request_id)
    ids = [prompt if isinstance(prompt, list) else api.ids(prompt) for prompt in prompts]
    assert [request.prompt_ids for request in requests] == [ids[0], ids[0], ids[1], ids[1]]
    assert [request.seed for request in requests] == [7, 8, 7, 8]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("num_tokens", [0, 3])
@pytest.mark.parametrize(
    ("failure", "status"),
    [({"raises": RuntimeError("x")}, 500), ({"end": FinishReason.ERROR}, 500), ({"refusal": "no"}, 400)],
    ids=["exception", "engine", "refusal"],
)
async def test_a_choice_that_fails_cancels_the_others(
    make_api: MakeApi,
    dialect: DialectName,
    route: str,
    num_tokens: int,
    failure: dict[str, Any],
    status: int,
) -> None:
    """The others would run for ever; an answer at all shows that nobody waited for them."""
    api = make_api(dialect)
    endless = Script(api.ids("ab"), hangs=True)
    api.graph.scripts = [endless, Script(api.ids("abc")[:num_tokens], **failure), endless]
    whole = await api.post(route, valid_body(route, n=3))
    assert whole.status_code == status
    error_message(whole)
    assert api.graph.live == set()
    *events, last = read_events(await api.post(route, valid_body(route, n=3, stream=True)))
    assert last["error"]["code"] == status
    assert all(choice["finish_reason"] is None for choice in choices_of(events))
    assert api.graph.live == set()
    assert {request_id.rsplit("-", 1)[1] for request_id in api.graph.unfinished} >= {"0", "2"}
    api.graph.scripts = [Script(api.ids("abc"))]
    await api.assert_still_works()


@pytest.mark.parametrize("stream", [True, False])
async def test_one_prompt_that_is_refused_starts_none(api: Api, stream: bool) -> None:
    for bad in ("a" * 1000, [10**6]):
        good = "a" if isinstance(bad, str) else [5]
        response = await api.post(COMPLETIONS, {"prompt": [good, bad, good], "stream": stream})
        assert response.status_code == 400
        error_message(response)
    assert api.graph.requests == []
    await api.assert_still_works()


@pytest.mark.parametrize("stream", [True, False])
async def test_too_many_choices_are_refused(make_api: MakeApi, dialect: DialectName, stream: bool) -> None:
    api = make_api(dialect, max_choices=4)
    await api.ask(COMPLETIONS, prompt=["a", "b"], n=2)
    response = await api.post(COMPLETIONS, {"prompt": ["a", "b", "c"], "n": 2, "stream": stream})
    assert response.status_code == 400
    message = error_message(response)
    assert "3 prompts times n=2" in message
    assert "4" in message
    await api.assert_still_works()
