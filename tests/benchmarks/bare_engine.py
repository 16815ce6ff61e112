"""The engine alone, without HTTP, Ray or detokenisation, on the load that `load.py` makes.

python -m tests.benchmarks.bare_engine --config serve_configs/app.yaml --concurrency 1 8 32
"""

from __future__ import annotations

import argparse
import queue
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from app.config import AppArgs
from deployments.engine.request import SamplingParams, StepOutput
from deployments.engine.start import start_engine
from tests.benchmarks.load import chat_body


class BareEngine:
    def __init__(self, args: AppArgs) -> None:
        self._outputs: queue.Queue[Sequence[StepOutput]] = queue.Queue()
        self._engine, self._tokenizer = start_engine(args.model, args.engine, self._outputs.put)
        self._number = 0

    def tokens_per_second(self, concurrency: int, rounds: int, num_tokens: int) -> float:
        """Keeps `concurrency` requests running until all rounds are done."""
        start, num_generated = time.perf_counter(), 0
        left = concurrency * (rounds - 1)
        for _ in range(concurrency):
            self._submit(num_tokens)
        running = concurrency
        while running:
            for output in self._outputs.get():
                num_generated += len(output.token_ids)
                if output.finish_reason is not None:
                    running -= 1
                    if left:
                        left -= 1
                        running += 1
                        self._submit(num_tokens)
        return num_generated / (time.perf_counter() - start)

    def _submit(self, num_tokens: int) -> None:
        self._number += 1
        messages = chat_body("", self._number, num_tokens)["messages"]
        ids = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        self._engine.submit([self._engine.make_request(str(self._number), ids, params, 0)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("serve_configs/app.yaml"))
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each request")
    options = parser.parse_args()
    (app,) = yaml.safe_load(options.config.read_text())["applications"]
    engine = BareEngine(AppArgs.model_validate(app["args"]))
    engine.tokens_per_second(max(options.concurrency), 1, 8)
    print("| streams | tokens/s |\n|---|---|")
    for concurrency in options.concurrency:
        print(
            f"| {concurrency} | {engine.tokens_per_second(concurrency, options.rounds, options.tokens):.0f} |"
        )


if __name__ == "__main__":
    main()
