"""An app's way from its config to its end: refused configs, waiting replicas, replicas that die."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.cluster.raw_client import RawClient, wait_for_streams
from tests.cluster.serve_cluster import Json, ServeCluster, ServedApp, app_of, wait_until

CANNOT_SERVE: dict[str, Json] = {
    "unknown": {"engine": {"max_num_seq": 3}},
    "out-of-range": {"model": {"generate_config": {"temperature": 3.0}}},
    "no-model": {"model": {"source": "/no/such/model", "sha256": None}},
    "no-resource": {"replica": {"resources": {"no_such_thing": 1.0}}},
}


@pytest.fixture(scope="module")
def cannot_serve(cluster: ServeCluster) -> Iterator[None]:
    """Apps that never serve, declared together, since Serve takes its time to give up each of them."""
    # Serve waits so long for an end of a replica that never began.
    at_once = {"deployments": [{"name": "ModelReplica", "graceful_shutdown_timeout_s": 0.1}]}
    apps = [app_of("app.yaml", name, f"/{name}", **args) | at_once for name, args in CANNOT_SERVE.items()]
    cluster.declare(*apps)
    yield
    cluster.delete(*CANNOT_SERVE)
    wait_until(lambda: not any(map(cluster.details, CANNOT_SERVE)), 60)


@pytest.mark.usefixtures("cannot_serve")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("unknown", ["engine.max_num_seq", "Extra inputs are not permitted"]),
        ("out-of-range", ["model.generate_config.temperature", "less than or equal to 2"]),
        ("no-model", ["model folder /no/such/model does not exist"]),
    ],
)
def test_what_stops_the_start_is_named(cluster: ServeCluster, name: str, words: list[str]) -> None:
    wait_until(lambda: cluster.details(name).get("status") == "DEPLOY_FAILED", 180, every_s=1)
    details = cluster.details(name)
    messages = [details["message"], *(d["message"] for d in details["deployments"].values())]
    assert [word for word in words if not any(word in message for message in messages)] == [], messages


@pytest.mark.usefixtures("cannot_serve")
def test_health_is_503_until_every_kind_of_replica_is_there(cluster: ServeCluster, tiny: ServedApp) -> None:
    pending = ServedApp("no-resource", tiny.url.replace("/tiny", "/no-resource"))
    wait_until(lambda: pending.health().status_code != 404, 120)
    response = pending.health()
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
