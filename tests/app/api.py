"""Calls the app without a socket, and reads its answers strictly."""

from __future__ import annotations

import json
from typing import Any

import httpx

from app.config import ApiConfig
from app.dialects import DIALECTS, DialectName
from app.server import create_app
from deployments.tokenizer import Tokenizer
from tests.app.scripted_graph import Script, ScriptedGraph

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ROUTES = (CHAT, COMPLETIONS)
HI = [{"role": "user", "content": "hi"}]

Json = dict[str, Any]


def valid_body(route: str, **fields: Any) -> Json:
    """A body that the route accepts, with more fields."""
    return {**({"messages": HI} if route == CHAT else {"prompt": "hi"}), **fields}


class Api:
    """One app over a scripted graph. A text as script is its tokens and EOS; the default is "Hello world"."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        dialect: DialectName,
        *scripts: Script | str,
        max_choices: int = 128,
        **graph: Any,
    ) -> None:
        self.tokenizer = tokenizer
        self.dialect = DIALECTS[dialect]
        self.schema_status = 400 if self.dialect.openai_errors else 422
        choices = [Script(self.ids(s)) if isinstance(s, str) else s for s in scripts or ["Hello world"]]
        self.graph = ScriptedGraph(tokenizer, choices, **graph)
        self.app = create_app(self.graph, ApiConfig(dialect=dialect, max_choices=max_choices))
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://test", timeout=None)

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    async def post(self, route: str, body: Json) -> httpx.Response:
        return await self.http.post(route, json=body)

    async def post_raw(self, route: str, body: bytes) -> httpx.Response:
        return await self.http.post(route, content=body, headers={"content-type": "application/json"})

    async def ask(self, route: str, **fields: Any) -> Json:
        """The answer to a valid body with these fields."""
        response = await self.post(route, valid_body(route, **fields))
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    async def stream(self, route: str, **fields: Any) -> list[Json]:
        """The events of a stream, without [DONE]."""
        return read_events(await self.post(route, valid_body(route, stream=True, **fields)))

    async def assert_still_works(self) -> None:
        """Nothing is left of earlier requests, and a normal one is answered."""
        assert self.graph.live == set()
        for route in ROUTES:
            await self.ask(route)
        assert self.graph.live == set()


def read_events(response: httpx.Response) -> list[Json]:
    """Read server-sent events: each `data: ` and one line of JSON, one [DONE], at the end."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: {") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def error_message(response: httpx.Response) -> str:
    """The message of a refusal in the form of its dialect, which is checked."""
    body = response.json()
    if "error" in body:
        assert body.keys() == {"error"}
        assert body["error"].keys() == {"message", "type", "param", "code"}
        message = body["error"]["message"]
    else:
        assert body.keys() == {"object", "message"}
        assert body["object"] == "error"
        message = body["message"]
    assert isinstance(message, str)
    return message


def text_of(events: list[Json], index: int = 0) -> str:
    """The text of one choice, joined from a stream's events."""
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(
        choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices
    )
