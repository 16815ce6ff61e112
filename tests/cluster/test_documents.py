"""The examples of the two API documents run as they are printed there, but for address and model name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.dialects import DialectName
from tests.cluster.serve_cluster import Json, ServedApp

pytestmark = pytest.mark.real_model

DOCUMENTS = Path(__file__).parent / "documents"
ADDRESS = "http://localhost:8000"
MODEL_NAME = "meta-llama/Llama-3.1-8B-Instruct"
SERVED_NAME = "SmolLM2-135M-Instruct"


@pytest.fixture
def mini_sglang(real_apps: dict[DialectName, ServedApp]) -> ServedApp:
    return real_apps["mini-sglang"]


def read_example(name: str, app: ServedApp) -> str:
    """An example of the mini-sglang document, for this app."""
    text = (DOCUMENTS / "mini-sglang" / name).read_text()
    assert ADDRESS in text
    assert MODEL_NAME in text
    return text.replace(ADDRESS, app.url).replace(MODEL_NAME, SERVED_NAME)


def run(*command: str) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_events(output: str) -> list[Json]:
    *events, done, rest = output.split("\n\n")
    assert (done, rest.strip()) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def shape(value: object) -> object:
    """The names and types of a JSON value."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value)


@pytest.mark.parametrize(
    ("example", "num_prompt_tokens", "max_tokens"), [("messages.sh", 27, 100), ("raw_prompt.sh", 4, 100)]
)
def test_curl_examples_print_a_chat_completion(
    mini_sglang: ServedApp, example: str, num_prompt_tokens: int, max_tokens: int
) -> None:
    answer = json.loads(run("bash", "-c", read_example(example, mini_sglang)))
    assert answer["id"].startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("chat.completion", SERVED_NAME)
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert re.search("[A-Za-z]{3}", choice["message"]["content"])
    usage = answer["usage"]
    assert usage["prompt_tokens"] == num_prompt_tokens
    assert 0 < usage["completion_tokens"] <= max_tokens
    assert choice["finish_reason"] == ("length" if usage["completion_tokens"] == max_tokens else "stop")


def test_the_streaming_curl_example_prints_events_like_the_printed_ones(mini_sglang: ServedApp) -> None:
    events = read_events(run("bash", "-c", read_example("streaming.sh", mini_sglang)))
    printed = read_events((DOCUMENTS / "mini-sglang" / "streaming_output.txt").read_text() + "\n")
    assert {event["object"] for event in events} == {printed[0]["object"]}
    assert len({event["id"] for event in events}) == 1
    assert [list(event["choices"][0]["delta"]) for event in events] == (
        [["role"], *[["content"]] * (len(events) - 2), []]
    )
    for event, like in ((events[0], printed[0]), (events[1], printed[1]), (events[-1], printed[-1])):
        assert shape(event["choices"]) == shape(like["choices"])
        assert like.keys() <= event.keys()
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
    assert len(events) > 10


@pytest.mark.parametrize("example", ["openai_client.py.txt", "openai_client_streaming.py.txt"])
def test_python_examples_print_the_answer(mini_sglang: ServedApp, example: str) -> None:
    printed = run(sys.executable, "-c", read_example(example, mini_sglang))
    assert len(re.findall("[A-Za-z0-9]+", printed)) > 3


def test_the_example_of_advanced_sampling_gets_an_answer(mini_sglang: ServedApp) -> None:
    """As printed it ends inside every release of the client, which has no `top_k` and sends nothing; the
    client's way to send such a field is `extra_body`."""
    example = read_example("advanced_sampling.py.txt", mini_sglang)
    with pytest.raises(AssertionError, match="unexpected keyword argument 'top_k'"):
        run(sys.executable, "-c", example)
    sent = example.replace("top_k=50", 'extra_body={"top_k": 50}') + "print(response.model_dump_json())"
    response = json.loads(run(sys.executable, "-c", sent))
    assert response["choices"][0]["message"]["content"]
    assert 0 < response["usage"]["completion_tokens"] <= 200


def test_a_completion_has_the_printed_shape(real_apps: dict[DialectName, ServedApp]) -> None:
    printed = json.loads((DOCUMENTS / "pypto-serving" / "completion.json").read_text())
    answer = real_apps["pypto-serving"].post("/v1/completions", {"prompt": "One two", "max_tokens": 5}).json()
    assert shape(answer) == shape(printed)
    assert answer["object"] == printed["object"]
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 5
