"""Serve's batching groups what arrives together, shows it in Ray's metrics, and delays nobody alone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest

from tests.cluster.conftest import BATCH_WAIT_SECONDS
from tests.cluster.serve_cluster import ServeCluster, ServedApp, wait_until

BURST = 24
METRICS_DELAY_SECONDS = 2  # four times as long as the cluster takes to report them
BODY = {"prompt": "hello", "max_tokens": 1}


def seconds_alone(app: ServedApp) -> float:
    times = []
    for _ in range(5):
        start = time.monotonic()
        app.post("/v1/completions", BODY)
        times.append(time.monotonic() - start)
    return median(times)


def test_a_lone_request_waits_for_nobody(tiny: ServedApp, narrow: ServedApp) -> None:
    """`narrow` is told to wait for a batch to fill; `tiny` has app.yaml's settings."""
    assert seconds_alone(narrow) > BATCH_WAIT_SECONDS
    assert seconds_alone(tiny) < BATCH_WAIT_SECONDS / 2


@pytest.mark.parametrize(
    ("deployment", "function"), [("Tokenizer", "_encode_batch"), ("ModelReplica", "_admit")]
)
def test_a_burst_enters_in_few_batches(
    cluster: ServeCluster, narrow: ServedApp, deployment: str, function: str
) -> None:
    labels = {"application": narrow.name, "deployment": deployment, "function_name": function}

    def num_batches() -> float:
        return cluster.metric("ray_serve_batches_processed_total", **labels)

    narrow.post("/v1/completions", BODY)
    wait_until(num_batches, 10)
    time.sleep(METRICS_DELAY_SECONDS)
    before = num_batches()
    with ThreadPoolExecutor(BURST) as pool:
        answers = list(pool.map(lambda _: narrow.post("/v1/completions", BODY), range(BURST)))
    assert [answer.status_code for answer in answers] == [200] * BURST
    time.sleep(METRICS_DELAY_SECONDS)
    assert 0 < num_batches() - before < BURST / 2
    for metric in ("actual_batch_size", "batch_utilization_percent", "batch_wait_time_ms"):
        assert cluster.metric(f"ray_serve_{metric}_count", **labels) > 0, metric
    assert cluster.has_metric("ray_serve_batch_queue_length", **labels)
