"""Whoever goes away, at whatever moment and in whatever way, leaves no work and no block behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deployments.engine.engine import EngineStats
from tests.cluster.conftest import LONG_CONTEXT
from tests.cluster.raw_client import Leave, RawClient
from tests.cluster.serve_cluster import Json, ServeCluster, ServedApp, wait_until

NUM_CLIENTS = 30
NUM_SEQS = 8  # of the app `narrow`
GONE_WITHIN_S = 5.0
NORMAL: Json = {"prompt": "hello", "temperature": 0, "max_tokens": 8}
MOMENTS = ["at once", "queued", "in prefill", "while generating"]

pytestmark = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


@pytest.fixture
def normal_answer(narrow: ServedApp) -> Iterator[str]:
    """What a normal request gets before the clients come; it gets the same after they have gone."""
    wait_until(narrow.is_idle, GONE_WITHIN_S)
    answer = narrow.post("/v1/completions", NORMAL).json()["choices"][0]["text"]
    yield answer
    assert narrow.post("/v1/completions", NORMAL).json()["choices"][0]["text"] == answer
    wait_until(narrow.is_idle, GONE_WITHIN_S)


def connect(app: ServedApp, stream: bool, prompt_length: int) -> list[RawClient]:
    """Requests that would take minutes; no two share a cached prefix."""
    body: Json = {"max_tokens": LONG_CONTEXT, "ignore_eos": True, "stream": stream}
    prompts = [[10 + i, *range(10, 10 + i), *[5] * prompt_length] for i in range(NUM_CLIENTS)]
    return [RawClient(app, "/v1/completions", {**body, "prompt": prompt}) for prompt in prompts]


def is_full(stats: EngineStats) -> bool:
    return (stats.num_running, stats.num_waiting) == (NUM_SEQS, NUM_CLIENTS - NUM_SEQS)


def clients_at(app: ServedApp, moment: str, stream: bool) -> list[RawClient]:
    """Clients whose requests have come as far as the moment says; most wait for the first eight."""
    prompt_length = {"queued": 2000, "in prefill": 2000}.get(moment, 4)
    before = app.engine_stats()
    clients = connect(app, stream, prompt_length)
    if moment == "at once":
        return clients
    wait_until(lambda: is_full(app.engine_stats()), 30)
    if moment == "in prefill":
        wait_until(lambda: app.engine_stats().num_steps > before.num_steps + 20, 30)
    if moment == "while generating":
        wait_until(lambda: app.engine_stats().num_steps > before.num_steps + 100, 30)
        if stream:
            for client in clients[:NUM_SEQS]:
                client.wait_for_events(3)
    stats = app.engine_stats()
    assert is_full(stats)
    assert stats.blocks_owned > 0
    return clients


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_work_stops_and_blocks_return_when_clients_leave(
    narrow: ServedApp, normal_answer: str, stream: bool, moment: str, how: Leave
) -> None:
    clients = clients_at(narrow, moment, stream)
    for client in clients:
        client.leave(how)
    wait_until(narrow.is_idle, GONE_WITHIN_S)
    steps = narrow.engine_stats().num_steps
    assert narrow.post("/v1/completions", NORMAL).status_code == 200
    assert narrow.engine_stats().num_steps - steps < 100  # the normal request's, not four thousand


def test_who_stays_is_served_when_others_leave(narrow: ServedApp, normal_answer: str, stream: bool) -> None:
    clients = clients_at(narrow, "while generating", stream)
    for client in clients:
        client.leave("reset")
    assert narrow.post("/v1/completions", NORMAL).json()["choices"][0]["text"] == normal_answer


def test_serve_counts_no_request_of_those_who_left(
    cluster: ServeCluster, narrow: ServedApp, normal_answer: str, stream: bool
) -> None:
    """Such a leak would keep replicas from draining and from scaling down."""

    def ongoing() -> float:
        return cluster.metric("ray_serve_replica_processing_queries", application=narrow.name)

    for _ in range(3):
        clients = clients_at(narrow, "while generating", stream)
        wait_until(lambda: ongoing() >= 2 * NUM_CLIENTS, 10)  # at the ingress and at the model replica
        for client in clients:
            client.leave("close")
        wait_until(lambda: ongoing() == 0, 10)
        assert narrow.is_idle()
