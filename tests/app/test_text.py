"""The text of an answer is the same streamed and whole, whatever tokens and stop strings it is made of."""

from __future__ import annotations

from typing import Any

import pytest

from app.dialects import DialectName
from tests.app.api import CHAT, COMPLETIONS, ROUTES, Api, text_of
from tests.app.conftest import MakeApi
from tests.app.scripted_graph import Script


async def both(api: Api, route: str, **fields: Any) -> tuple[str, str, int]:
    """The text, finish reason and completion tokens, which are equal in both ways of asking."""
    answer = await api.ask(route, max_tokens=200, **fields)
    (choice,) = answer["choices"]
    text = choice["text"] if route == COMPLETIONS else choice["message"]["content"]
    options = {"include_usage": True}
    *events, usage = await api.stream(route, max_tokens=200, stream_options=options, **fields)
    assert text_of(events) == text
    assert "\ufffd" not in "".join(map(str, events))
    assert events[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert usage["usage"] == answer["usage"]
    return text, choice["finish_reason"], answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("tokens_per_step", [1, 2, 5, 100])
@pytest.mark.parametrize("text", ["🙂👩‍🚀中文é", "  indented\n\n    more ", " ", "tail\n"])
async def test_text_is_as_the_model_made_it(
    make_api: MakeApi, dialect: DialectName, route: str, tokens_per_step: int, text: str
) -> None:
    """Cases 1 and 9."""
    api = make_api(dialect)
    api.graph.scripts = [Script(api.ids(text), tokens_per_step)]
    assert (await both(api, route))[0] == text


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
@pytest.mark.parametrize(
    ("generated", "stop", "text"),
    [
        ("a\nENDb", ["\nEND"], "a"),
        ("foo.bar", ["."], "foo"),
        ("foo.bar", ".", "foo"),
        ("one STOP two END", ["END", "STOP"], "one "),
        ("END", ["END"], ""),
        ("中🙂文", ["🙂"], "中"),
    ],
)
async def test_nothing_of_a_stop_string_is_sent(
    make_api: MakeApi,
    dialect: DialectName,
    route: str,
    tokens_per_step: int,
    generated: str,
    stop: Any,
    text: str,
) -> None:
    """Cases 3 and 5; the usage counts the tokens of the stop string too."""
    api = make_api(dialect)
    api.graph.scripts = [Script(api.ids(generated), tokens_per_step)]
    answered, reason, num_tokens = await both(api, route, stop=stop)
    assert (answered, reason) == (text, "stop")
    assert num_tokens > len(api.ids(text))


async def test_the_beginning_of_a_stop_string_is_text_at_the_end(
    make_api: MakeApi, dialect: DialectName
) -> None:
    api = make_api(dialect, "the EN")
    assert await both(api, CHAT, stop=["END"]) == ("the EN", "stop", len(api.ids("the EN")) + 1)
