"""Load generator: streamed chat requests against any OpenAI-compatible server.

    python -m tests.benchmarks.load --url http://localhost:8000 --concurrency 1 8 32

Keeps the given number of streams open until each of them has run its rounds. Every prompt is different,
so that no prefix cache helps, and every stream generates the same number of tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from dataclasses import dataclass, field

import aiohttp
import numpy as np
from tqdm import tqdm

TOPICS = ["rivers", "clocks", "bread", "chess", "comets", "violins", "bridges", "bees", "glass", "maps"]


@dataclass
class StreamTimes:
    """When a stream's events came, in seconds since it was sent."""

    events: list[float] = field(default_factory=list)
    num_tokens: int = 0

    @property
    def first(self) -> float:
        return self.events[0]

    @property
    def gaps(self) -> list[float]:
        return [later - sooner for sooner, later in itertools.pairwise(self.events)]


@dataclass
class Result:
    concurrency: int
    seconds: float
    streams: list[StreamTimes]

    @property
    def tokens_per_second(self) -> float:
        return sum(stream.num_tokens for stream in self.streams) / self.seconds

    def row(self) -> str:
        first = np.array([stream.first for stream in self.streams]) * 1000
        gaps = np.array([gap for stream in self.streams for gap in stream.gaps]) * 1000
        cells = [
            f"{self.concurrency}",
            f"{self.tokens_per_second:.0f}",
            f"{np.median(first):.0f} / {np.quantile(first, 0.95):.0f}",
            f"{np.median(gaps):.1f} / {np.quantile(gaps, 0.95):.1f}",
        ]
        return f"| {' | '.join(cells)} |"


HEADER = (
    "| streams | tokens/s | first token, ms (median / p95) | between events, ms (median / p95) |\n"
    "|---|---|---|---|"
)


def chat_body(model: str, number: int, num_tokens: int) -> dict[str, object]:
    topic = TOPICS[number % len(TOPICS)]
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"{number}: tell me something about {topic}, please."}],
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def run_stream(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> StreamTimes:
    times = StreamTimes()
    start = time.perf_counter()
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if any(choice["delta"].get("content") for choice in event["choices"]):
                    times.events.append(time.perf_counter() - start)
                if event.get("usage"):
                    times.num_tokens = event["usage"]["completion_tokens"]
    return times


async def run(
    url: str, model: str, concurrency: int, rounds: int, num_tokens: int, first_number: int = 0
) -> Result:
    """`concurrency` streams at once, `rounds` times one after another."""
    numbers = itertools.count(first_number)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(3600)) as session:
        bar = tqdm(total=concurrency * rounds, desc=f"{concurrency} streams", leave=False, disable=None)

        async def client() -> list[StreamTimes]:
            streams = []
            for _ in range(rounds):
                body = chat_body(model, next(numbers), num_tokens)
                streams.append(await run_stream(session, url, body))
                bar.update()
            return streams

        start = time.perf_counter()
        streams = await asyncio.gather(*(client() for _ in range(concurrency)))
        seconds = time.perf_counter() - start
        bar.close()
    return Result(concurrency, seconds, [stream for client in streams for stream in client])


async def measure(
    url: str, model: str, concurrencies: list[int], rounds: int, num_tokens: int
) -> list[Result]:
    """After a warm-up round, each concurrency in turn."""
    await run(url, model, max(concurrencies), 1, 8, first_number=1_000_000)
    first_numbers = itertools.count(0, 100_000)
    return [await run(url, model, c, rounds, num_tokens, next(first_numbers)) for c in concurrencies]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each stream")
    options = parser.parse_args()
    results = asyncio.run(
        measure(options.url, options.model, options.concurrency, options.rounds, options.tokens)
    )
    print(HEADER)
    for result in results:
        print(result.row())


if __name__ == "__main__":
    main()
