"""Whoever goes away, at whatever moment and in whatever way, leaves no work and no block behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from deployments.engine.engine import EngineStats
from tests.cluster.conftest import LONG_CONTEXT
from tests.cluster.raw_client import Leave, RawClient, wait_for_streams
from tests.cluster.serve_cluster import Json, ServeCluster, ServedApp, wait_until

NUM_CLIENTS = 30
NUM_SEQS = 8  # of the app `narrow`
GONE_WITHIN_S = 5.0
ClientsAt = Callable[[str], list[RawClient]]

NORMAL: Json = {"prompt": "hello", "temperature": 0, "max_tokens": 8}

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


@pytest.fixture
def clients_at(narrow: ServedApp, normal_answer: str, stream: bool) -> Iterator[ClientsAt]:
    """Brings clients as far as a moment says. Whoever is still there after the test leaves."""
    came: list[RawClient] = []

    def come(moment: str) -> list[RawClient]:
        steps_before = narrow.engine_stats().num_steps
        clients = connect(narrow, stream, PROMPT_LENGTHS[moment])
        came.extend(clients)
        wait_until(lambda: HAS_COME[moment](narrow.engine_stats(), steps_before), 30)
        if moment == "while generating" and stream:
            wait_for_streams(clients, NUM_SEQS, 3)
        return clients

    yield come
    for client in came:
        client.leave("close")


def is_full(stats: EngineStats) -> bool:
    return (stats.num_running, stats.num_waiting) == (NUM_SEQS, NUM_CLIENTS - NUM_SEQS)


PROMPT_LENGTHS = {"at once": 4, "queued": 50, "in prefill": LONG_CONTEXT - 100, "while generating": 4}
HAS_COME: dict[str, Callable[[EngineStats, int], bool]] = {
    "at once": lambda stats, steps_before: True,
    "queued": lambda stats, steps_before: is_full(stats),
    # The first prompt alone takes 250 steps, and all of the others wait for it.
    "in prefill": lambda stats, steps_before: (
        stats.num_running == 1 and stats.blocks_owned > 10 and stats.num_steps > steps_before + 20
    ),
    "while generating": lambda stats, steps_before: is_full(stats) and stats.num_steps > steps_before + 100,
}


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("moment", HAS_COME)
def test_work_stops_and_blocks_return_when_clients_leave(
    narrow: ServedApp, clients_at: ClientsAt, moment: str, how: Leave
) -> None:
    clients = clients_at(moment)
    for client in clients:
        client.leave(how)
    wait_until(narrow.is_idle, GONE_WITHIN_S)
    steps = narrow.engine_stats().num_steps
    assert narrow.post("/v1/completions", NORMAL).status_code == 200
    assert narrow.engine_stats().num_steps - steps < 100  # the normal request's, not four thousand


def test_who_stays_is_served_when_others_leave(
    narrow: ServedApp, normal_answer: str, clients_at: ClientsAt
) -> None:
    clients = clients_at("while generating")
    for client in clients:
        client.leave("reset")
    assert narrow.post("/v1/completions", NORMAL).json()["choices"][0]["text"] == normal_answer


def test_serve_counts_no_request_of_those_who_left(
    cluster: ServeCluster, narrow: ServedApp, clients_at: ClientsAt
) -> None:
    """Such a leak would keep replicas from draining and from scaling down."""

    def ongoing() -> float:
        return cluster.metric("ray_serve_replica_processing_queries", application=narrow.name)

    for _ in range(3):
        clients = clients_at("while generating")
        wait_until(lambda: ongoing() >= 2 * NUM_CLIENTS, 10)  # at the ingress and at the model replica
        for client in clients:
            client.leave("close")
        wait_until(lambda: ongoing() == 0, 10)
        assert narrow.is_idle()
