"""Where the engine's threads run, as the kernel tells it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from deployments.engine.threads import available_cores, use_threads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process pin its threads")


def in_a_thread(work: Callable[[], None]) -> None:
    """Run `work` where OpenMP has no workers yet."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def affinities_of_the_team() -> list[set[int]]:
    me = Path(f"/proc/self/task/{threading.get_native_id()}")
    name = (me / "comm").read_text()
    found = []
    for task in me.parent.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # another thread that ends meanwhile
            if (task / "comm").read_text() == name:
                found.append(os.sched_getaffinity(int(task.name)))
    return found


def test_each_thread_has_a_core_of_its_own() -> None:
    cores = available_cores()
    found: list[set[int]] = []

    def work() -> None:
        use_threads(len(cores))
        found.extend(affinities_of_the_team())

    in_a_thread(work)
    assert sorted(found, key=min) == [{core} for core in cores]
    assert os.sched_getaffinity(0) == set(cores)


def test_a_part_of_the_cores_is_left_to_the_kernel() -> None:
    cores = set(available_cores())
    found: list[tuple[int, set[int]]] = []

    def work() -> None:
        use_threads(len(cores) - 1)
        found.append((torch.get_num_threads(), os.sched_getaffinity(threading.get_native_id())))

    if len(cores) > 1:
        in_a_thread(work)
        assert found == [(len(cores) - 1, cores)]
