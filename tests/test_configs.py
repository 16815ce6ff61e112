"""The YAML files that ship are complete, true to the code and accepted by those who read them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml
from pydantic import BaseModel, ValidationError
from ray.serve.schema import ServeDeploySchema

from app.config import AppArgs
from app.dialects import DialectName
from deployments.engine.config import GenerateConfig
from tests.cluster.serve_cluster import REPOSITORY, read_config

CONFIGS: dict[str, DialectName] = {
    "app.yaml": "pypto-serving",
    "minisgl.yaml": "mini-sglang",
    "openai.yaml": "openai",
}
NO_DEFAULT = {"model.source", "model.sha256"}


def args_of(config: str) -> dict[str, Any]:
    (app,) = read_config(config)["applications"]
    args: dict[str, Any] = app["args"]
    return args


def settings_of(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Default by dotted name, of everything that can be set below the model."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and name != "generate_config":
            found |= settings_of(kind, f"{prefix}{name}.")
        else:
            found[prefix + name] = field.default
    return found


def flat(args: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in args.items():
        if isinstance(value, dict) and name not in ("generate_config", "resources"):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def test_every_config_is_tested() -> None:
    assert {file.name for file in (REPOSITORY / "serve_configs").glob("*.yaml")} == set(CONFIGS)


@pytest.mark.parametrize(("config", "dialect"), CONFIGS.items())
def test_configs_are_what_serve_and_the_builder_accept(config: str, dialect: DialectName) -> None:
    ServeDeploySchema.model_validate(read_config(config))
    assert AppArgs.model_validate(args_of(config)).api.dialect == dialect


def test_app_yaml_states_every_setting_with_its_default() -> None:
    stated, settings = flat(args_of("app.yaml")), settings_of(AppArgs)
    assert stated.keys() == settings.keys()
    args = AppArgs.model_validate(args_of("app.yaml")).model_dump()
    for name, default in settings.items():
        if name not in NO_DEFAULT:
            value = flat(args)[name]
            assert value == (default.model_dump() if isinstance(default, BaseModel) else default), name


def test_app_yaml_lists_the_generation_defaults() -> None:
    text = (REPOSITORY / "serve_configs/app.yaml").read_text()
    assert [name for name in GenerateConfig.model_fields if name not in text] == []


@pytest.mark.parametrize("config", CONFIGS)
def test_configs_serve_the_same_model(config: str) -> None:
    default, other = args_of("app.yaml")["model"], args_of(config)["model"]
    assert {name: default[name] for name in other} == other


def test_the_cluster_template_fits_rays_schema() -> None:
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(yaml.safe_load((REPOSITORY / "cluster.yaml").read_text()), schema)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("engine.max_num_seq", 3),
        ("engine.max_num_seqs", 0),
        ("engine.max_num_seqs", "64"),
        ("engine.device", "tpu"),
        ("engine.step_timeout_s", float("nan")),
        ("api.dialect", "klingon"),
        ("model.source", ""),
        ("model.sha256", "short"),
        ("model.generate_config.temperature", 2.5),
        ("model.generate_config.top_k", 0),
        ("model.generate_config.top_k", True),
        ("model.generate_config.stop", "x"),
        ("tokenizer.batch_wait_timeout_s", 2),
        ("replica.num_gpus", -1),
        ("speed", "high"),
    ],
)
def test_a_wrong_setting_is_refused_and_named(path: str, value: object) -> None:
    args = args_of("app.yaml")
    *parents, name = path.split(".")
    inner = args
    for parent in parents:
        inner = inner[parent]
    inner[name] = value
    with pytest.raises(ValidationError, match=re.escape(path)):
        AppArgs.model_validate(args)
