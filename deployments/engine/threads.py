"""Gives each of the engine's CPU threads a core of its own.

OpenMP's threads meet at the end of every parallel operator. While the kernel keeps two of them on one core,
which it does for seconds when other processes run, a meeting takes a time slice instead of microseconds.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

import torch

_TASKS = Path("/proc/self/task")
_PARALLEL_SIZE = 1 << 20
"""Elements of an operation that torch certainly splits among its threads."""


def available_cores() -> list[int]:
    """The cores that this process may use."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def use_threads(num_threads: int) -> None:
    """Let torch compute with `num_threads` threads when called from this thread, and pin them.

    They are pinned only where they take all cores: a part of the cores is better chosen by the kernel, which
    knows what else runs. OpenMP keeps the number, and the threads, for each thread that calls it.
    """
    torch.set_num_threads(num_threads)
    cores = available_cores()
    if sys.platform == "linux" and num_threads == len(cores) > 1:
        team = _name_team(f"engine-{threading.get_native_id()}"[:15])
        for thread, core in zip(team, cores, strict=False):
            os.sched_setaffinity(thread, {core})


def _name_team(name: str) -> list[int]:
    """Name this thread, start its OpenMP workers, which inherit the name, and list all of them."""
    (_TASKS / str(threading.get_native_id()) / "comm").write_text(name)
    torch.ones(_PARALLEL_SIZE).add_(1)
    team = [threading.get_native_id()]
    for task in _TASKS.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it may end before or while it is read
            if int(task.name) not in team and (task / "comm").read_text().strip() == name:
                team.append(int(task.name))
    return team
