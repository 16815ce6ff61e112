"""One Ray cluster with Serve, and the apps that the tests declare on it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import ray
import yaml
from prometheus_client.parser import text_string_to_metric_families
from ray import serve

from deployments.engine.engine import EngineStats

REPOSITORY = Path(__file__).parents[2]
SERVE = Path(sys.executable).with_name("serve")
START_SECONDS = 240

Json = dict[str, Any]


def wait_until(condition: Callable[[], object], within_s: float, every_s: float = 0.05) -> None:
    """Wait for the condition to hold; a test fails if it does not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"still waiting after {within_s} seconds"
        time.sleep(every_s)


def read_config(name: str) -> Json:
    config: Json = yaml.safe_load((REPOSITORY / "serve_configs" / name).read_text())
    return config


@dataclass(frozen=True)
class ServedApp:
    """One running app, as a client and as an operator see it."""

    name: str
    url: str

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    def post(self, route: str, body: Json) -> httpx.Response:
        return httpx.post(self.url + route, json=body, timeout=60)

    def get(self, route: str) -> httpx.Response:
        return httpx.get(self.url + route, timeout=30)

    def health(self) -> httpx.Response:
        return self.get("/health")

    def engine_stats(self) -> EngineStats:
        """Of the app's only ModelReplica."""
        stats: EngineStats = serve.get_deployment_handle("ModelReplica", self.name).stats.remote().result()
        return stats

    def is_idle(self) -> bool:
        stats = self.engine_stats()
        return (stats.num_running, stats.num_waiting, stats.blocks_owned) == (0, 0, 0)


class ServeCluster:
    """A private cluster on free ports. Apps are declared by `serve deploy`, all that live in one file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._apps: dict[str, Json] = {}
        self._http_options = {**read_config("app.yaml")["http_options"], "port": 0}
        self._dashboard = ""
        self._stack = ExitStack()

    def __enter__(self) -> ServeCluster:
        with ExitStack() as reserved:
            dashboard_port, http_port, metrics_port = (_free_port(reserved) for _ in range(3))
        self._http_options["port"] = http_port
        self._dashboard = f"http://127.0.0.1:{dashboard_port}"
        self._metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"
        os.environ["RAY_AUTH_MODE"] = "disabled"  # else this process and the command line need a token
        self._stack.callback(ray.shutdown)
        self._stack.callback(serve.shutdown)
        ray.init(
            address="local",
            num_cpus=16,  # logical: the replicas of all apps fit
            include_dashboard=True,
            dashboard_port=dashboard_port,
            object_store_memory=100 * 1024**2,
            log_to_driver=False,
            _temp_dir=str(self._folder),
            _node_ip_address="127.0.0.1",
            _metrics_export_port=metrics_port,
            _system_config={"metrics_report_interval_ms": 500, "worker_niceness": 0},
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def deploy(self, *apps: Json) -> list[ServedApp]:
        """Declare apps beside those that run already, and wait until they do too."""
        self.declare(*apps)
        wait_until(lambda: all(self._is_running(app["name"]) for app in apps), START_SECONDS, every_s=0.2)
        return [self._served(app) for app in apps]

    def declare(self, *apps: Json) -> None:
        self._apps.update({app["name"]: app for app in apps})
        self._serve_deploy()

    def delete(self, *names: str) -> None:
        for name in names:
            del self._apps[name]
        self._serve_deploy()

    def details(self, app: str) -> Json:
        """What Serve reports of the app: its status, a message, deployments and their replicas."""
        answer = httpx.get(f"{self._dashboard}/api/serve/applications/", timeout=60)
        details: Json = answer.raise_for_status().json()["applications"].get(app, {})
        return details

    def replica(self, app: ServedApp, deployment: str = "ModelReplica") -> Json:
        """Where the app's only replica of the deployment runs: its `pid`, its `actor_name`."""
        replica: Json
        (replica,) = self.details(app.name)["deployments"][deployment]["replicas"]
        return replica

    def cli(self, *arguments: str) -> str:
        """Output of a command of Serve's, which must succeed."""
        command = [str(SERVE), *arguments, "--address", self._dashboard]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=self._folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def metric(self, name: str, **labels: str) -> float:
        """A sample of Ray's metrics as Prometheus reads them, summed over what the labels leave open."""
        return sum(self._samples(name, labels))

    def has_metric(self, name: str, **labels: str) -> bool:
        return any(True for _ in self._samples(name, labels))

    def _samples(self, name: str, labels: dict[str, str]) -> Iterator[float]:
        families = text_string_to_metric_families(httpx.get(self._metrics_url, timeout=30).text)
        for sample in (sample for family in families for sample in family.samples):
            if sample.name == name and labels.items() <= sample.labels.items():
                yield sample.value

    def _serve_deploy(self) -> None:
        config = {**read_config("app.yaml"), "http_options": self._http_options}
        file = self._folder / "apps.yaml"
        file.write_text(yaml.safe_dump({**config, "applications": list(self._apps.values())}))
        self.cli("deploy", str(file))

    def _is_running(self, app: str) -> bool:
        details = self.details(app)
        assert details.get("status") != "DEPLOY_FAILED", details["message"]
        return details.get("status") == "RUNNING"

    def _served(self, app: Json) -> ServedApp:
        prefix = app["route_prefix"].rstrip("/")
        return ServedApp(app["name"], f"http://127.0.0.1:{self._http_options['port']}{prefix}")


def _free_port(reserved: ExitStack) -> int:
    """A port that nobody uses, reserved until the stack closes."""
    port: int = reserved.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
    return port


def merged(base: Json, changes: Json) -> Json:
    """`base` with `changes` laid over it, mapping by mapping."""
    result = dict(base)
    for key, value in changes.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result


def app_of(config: str, name: str, route_prefix: str, **args: Any) -> Json:
    """The app of a serve config under another name and route, with some args changed."""
    (app,) = read_config(config)["applications"]
    return {**app, "name": name, "route_prefix": route_prefix, "args": merged(app["args"], args)}
