"""Loads tokenizer, weights and the facts about a model from the folder that `sources.resolve` gives."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateSyntaxError
from pydantic import ValidationError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.chat_template_utils import render_jinja_template

from deployments.engine.config import GenerateConfig, ModelConfig
from deployments.engine.model_info import ModelInfo
from deployments.engine.sources import ModelSourceError, default_served_name, resolve

BUILT_IN_DEFAULTS: dict[str, Any] = {
    "max_new_tokens": 256,
    "temperature": 0.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "stop": [],
    "ignore_eos": False,
}
# What a model's generation_config.json may set; temperature follows its do_sample and is read apart.
MODEL_DEFAULTS = ("max_new_tokens", "top_p", "top_k", "min_p", "repetition_penalty")

logger = logging.getLogger(__name__)


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The model's tokenizer, with the configured chat template in place of its own."""
    folder = resolve(config)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise ModelSourceError(
            f"{config.source} has no tokenizer that transformers reads: {error}"
        ) from error
    if config.chat_template is not None:
        tokenizer.chat_template = _read_chat_template(config.chat_template)
    return tokenizer


def load_model(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, attn_implementation: str
) -> PreTrainedModel:
    """The model on `device`, ready for inference."""
    folder = resolve(config)
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            device_map=device,  # weights go there one by one: the host never holds the whole model
            attn_implementation=attn_implementation,
            trust_remote_code=config.trust_remote_code,
        )
    except (OSError, ValueError) as error:
        raise ModelSourceError(f"transformers cannot load {config.source}: {error}") from error
    model.eval()
    model.requires_grad_(False)
    return model


def describe(config: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> ModelInfo:
    """Facts from the model's configuration files; reads no weights."""
    folder = resolve(config)
    model_config = AutoConfig.from_pretrained(folder, trust_remote_code=config.trust_remote_code)
    text_config: PreTrainedConfig = model_config.get_text_config()
    generation_file = _read_generation_file(folder)
    eos_sources = (
        tokenizer.eos_token_id,
        model_config.to_dict().get("eos_token_id"),  # not every class of configuration has the attribute
        text_config.to_dict().get("eos_token_id"),
        generation_file.get("eos_token_id"),
    )
    return ModelInfo(
        served_name=config.served_name or default_served_name(config.source),
        max_position_embeddings=text_config.max_position_embeddings,
        eos_token_ids=_token_ids(eos_sources),
        bos_token_id=tokenizer.bos_token_id,
        vocab_size=text_config.vocab_size,
        tokenizer_size=len(tokenizer),
        created=int((folder / "config.json").stat().st_mtime),
        generation=generation_defaults(generation_file, config.generate_config),
    )


def generation_defaults(generation_file: dict[str, Any], configured: GenerateConfig) -> GenerateConfig:
    """The server's configuration over the model's generation_config.json over the built-in defaults."""
    defaults = BUILT_IN_DEFAULTS | _usable_values(generation_file)
    overlay = configured.model_dump(exclude_none=True, exclude_unset=True)
    return GenerateConfig.model_validate(defaults | overlay)


def _usable_values(generation_file: dict[str, Any]) -> dict[str, Any]:
    """The values that the file states and that are in range; transformers' implicit ones do not count."""
    stated = {name: generation_file[name] for name in MODEL_DEFAULTS if generation_file.get(name) is not None}
    if generation_file.get("do_sample"):
        temperature = generation_file.get("temperature")
        stated["temperature"] = 1.0 if temperature is None else temperature
    usable = {}
    for name, value in stated.items():
        try:
            GenerateConfig.model_validate({name: value})
        except ValidationError as error:
            logger.warning(
                "ignoring %s=%r of generation_config.json: %s", name, value, error.errors()[0]["msg"]
            )
        else:
            usable[name] = value
    return usable


def _read_generation_file(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelSourceError(f"{folder / 'generation_config.json'} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelSourceError(f"{folder / 'generation_config.json'} does not hold a JSON object")
    return content


def _token_ids(sources: Iterable[int | list[int] | None]) -> frozenset[int]:
    """Union of token ids, each of which configuration files give as one, a list, or nothing."""
    ids: set[int] = set()
    for source in sources:
        if source is not None:
            ids.update([source] if isinstance(source, int) else source)
    return frozenset(ids)


def _read_chat_template(file: Path) -> str:
    try:
        template = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelSourceError(f"cannot read the chat template {file}: {error}") from error
    try:
        # Renders nothing, but compiles with the tags that transformers adds to Jinja.
        render_jinja_template([], chat_template=template)
    except TemplateSyntaxError as error:
        raise ModelSourceError(f"chat template {file}, line {error.lineno}: {error.message}") from error
    return template
