"""An app's way from its config to its end: refused configs, waiting replicas, replicas that die."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.cluster.raw_client import RawClient, wait_for_streams
from tests.cluster.serve_cluster import Json, ServeCluster, ServedApp, app_of, wait_until

Declare = Callable[..., str]


@pytest.fixture
def declare(cluster: ServeCluster) -> Iterator[Declare]:
    """Declares an app without waiting for it, and takes it away after the test."""
    names: list[str] = []

    def declare(name: str, **args: Any) -> str:
        names.append(name)
        cluster.declare(app_of("app.yaml", name, f"/{name}", **args))
        return name

    yield declare
    cluster.delete(*names)
    wait_until(lambda: not any(cluster.details(name) for name in names), 60)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"engine": {"max_num_seq": 3}}, ["engine", "max_num_seq", "Extra inputs"]),
        ({"engine": {"max_num_seqs": 0}}, ["engine", "max_num_seqs", "greater than 0"]),
        ({"api": {"dialect": "klingon"}}, ["api", "dialect", "pypto-serving"]),
        ({"model": {"generate_config": {"temperature": 3.0}}}, ["generate_config", "temperature", "2"]),
        ({"model": {"generate_config": {"top_k": "5"}}}, ["generate_config", "top_k", "integer"]),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_a_wrong_setting_stops_the_start_and_is_named(
    cluster: ServeCluster, declare: Declare, args: Json, words: list[str]
) -> None:
    name = declare("wrong", **args)
    wait_until(lambda: cluster.details(name).get("status") == "DEPLOY_FAILED", 60)
    message = cluster.details(name)["message"]
    assert [word for word in words if word not in message] == []


def test_a_model_that_does_not_exist_is_named(cluster: ServeCluster, declare: Declare) -> None:
    name = declare("nowhere", model={"source": "/no/such/model", "sha256": None})
    wait_until(lambda: cluster.details(name).get("status") == "DEPLOY_FAILED", 120)
    details = cluster.details(name)
    messages = [details["message"], *(d["message"] for d in details["deployments"].values())]
    assert any("/no/such/model does not exist" in message for message in messages), messages


def test_health_is_503_until_every_kind_of_replica_is_there(
    cluster: ServeCluster, tiny: ServedApp, declare: Declare
) -> None:
    name = declare("pending", replica={"resources": {"no_such_thing": 1.0}})
    url = tiny.url.replace("/tiny", f"/{name}")
    wait_until(lambda: httpx.get(f"{url}/health", timeout=30).status_code != 404, 60)
    response = httpx.get(f"{url}/health", timeout=30)
    assert (response.status_code, response.json()) == (503, {"status": "not_ready"})
    assert tiny.health().json() == {"status": "ok"}


def test_a_replica_that_is_killed_costs_only_what_was_in_flight(
    cluster: ServeCluster, tiny: ServedApp
) -> None:
    body = {"prompt": "hello", "max_tokens": 100, "ignore_eos": True, "temperature": 0}
    expected = tiny.post("/v1/completions", body).json()["choices"]
    client = RawClient(tiny, "/v1/completions", {**body, "stream": True, "n": 64})
    wait_for_streams([client], 1, 3)
    killed = cluster.replica(tiny)["pid"]
    os.kill(killed, signal.SIGKILL)
    while b"[DONE]" not in client.received:
        assert client.receive(), "the stream was cut without a last event"
    *_, error, done = client.received.decode().split("data: ")
    assert done.startswith("[DONE]")
    assert '"error"' in error
    assert '"code":500' in error
    client.leave("close")
    wait_until(lambda: tiny.health().status_code == 200 and cluster.replica(tiny)["pid"] != killed, 90)
    assert tiny.post("/v1/completions", body).json()["choices"] == expected
    assert tiny.is_idle()
