"""One Ray cluster for the whole session, and apps on it from the serve configs that ship."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.dialects import DialectName
from tests.cluster.serve_cluster import ServeCluster, ServedApp, app_of
from tests.tiny_models import build_model

CONFIGS: dict[DialectName, str] = {
    "pypto-serving": "app.yaml",
    "mini-sglang": "minisgl.yaml",
    "openai": "openai.yaml",
}
BATCH_WAIT_SECONDS = 0.4
LONG_CONTEXT = 4096


@pytest.fixture(scope="session")
def cluster() -> Iterator[ServeCluster]:
    folder = Path(tempfile.mkdtemp(prefix="sg-", dir="/tmp"))  # short: paths of sockets are limited
    try:
        with ServeCluster(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def real_apps(cluster: ServeCluster) -> dict[DialectName, ServedApp]:
    """The default model in each dialect. float32 makes its text comparable, and the server's seed makes
    sampled text the same at each call."""
    engine = {"dtype": "float32"}
    model = {"generate_config": {"seed": 1}}
    apps = cluster.deploy(
        *(app_of(config, name, f"/{name}", engine=engine, model=model) for name, config in CONFIGS.items())
    )
    return dict(zip(CONFIGS, apps, strict=True))


@pytest.fixture(params=CONFIGS)
def dialect(request: pytest.FixtureRequest) -> DialectName:
    name: DialectName = request.param
    return name


@pytest.fixture
def real_app(real_apps: dict[DialectName, ServedApp], dialect: DialectName) -> ServedApp:
    """The default model, in each dialect in turn."""
    return real_apps[dialect]


@pytest.fixture(scope="session")
def tiny_apps(cluster: ServeCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ServedApp]:
    """A tiny random model: `tiny` with app.yaml's settings, `narrow` with so low limits that requests wait
    for each other everywhere."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    build_model(folder, "llama")
    model = {"source": str(folder), "sha256": None, "generate_config": {"max_new_tokens": 8}}
    engine = {"kv_cache_memory_gb": 0.1, "num_threads": 1}
    long = {**model, "source": str(_with_longer_context(folder))}
    apps = cluster.deploy(
        app_of("app.yaml", "tiny", "/tiny", model=model, engine=engine),
        app_of(
            "openai.yaml",
            "narrow",
            "/narrow",
            model=long,
            engine={**engine, "max_num_seqs": 8, "max_num_batched_tokens": 16},
            tokenizer={"batch_wait_timeout_s": BATCH_WAIT_SECONDS},
            admission={"batch_wait_timeout_s": BATCH_WAIT_SECONDS},
        ),
    )
    return {app.name: app for app in apps}


@pytest.fixture
def tiny(tiny_apps: dict[str, ServedApp]) -> ServedApp:
    return tiny_apps["tiny"]


@pytest.fixture
def narrow(tiny_apps: dict[str, ServedApp]) -> ServedApp:
    return tiny_apps["narrow"]


def _with_longer_context(folder: Path) -> Path:
    """A copy of the model that accepts longer texts: rotary positions need no weights."""
    copy = folder.with_name("long")
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "max_position_embeddings": LONG_CONTEXT}))
    return copy
