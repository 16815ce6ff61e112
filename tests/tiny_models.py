"""Tiny random models and their tokenizer for tests: built from a config in milliseconds, never downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.phi3 import Phi3Config
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

Kind = Literal["llama", "qwen2", "qwen3", "gemma3", "mistral", "phi3"]
KINDS: tuple[Kind, ...] = get_args(Kind)

SLIDING_WINDOW = 8
MAX_POSITIONS = 512

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CORPUS = [
    "The quick brown fox jumps over the lazy dog while the model reads the prompt and writes the answer.",
    "A server takes the request, the scheduler plans the step, and the user reads the tokens.",
    '{"name": "value", "number": 12, "list": [1, 2, 3], "true": true}',
]


def build_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Save a byte-level BPE tokenizer (every text round-trips) with a ChatML template in `folder`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<unk>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        pad_token="<unk>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHATML
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(folder)
    return fast


def tiny_config(kind: Kind, tokenizer: PreTrainedTokenizerFast, tied: bool) -> PreTrainedConfig:
    """Three layers, hidden size 64, four query heads of size 16 over two key/value heads."""
    common: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": 0.3,
        "tie_word_embeddings": tied,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    match kind:
        case "llama":
            return LlamaConfig(**common, head_dim=16)
        case "qwen2":
            return Qwen2Config(**common)
        case "qwen3":
            return Qwen3Config(**common, head_dim=16)
        case "gemma3":
            layers = ["sliding_attention", "full_attention", "sliding_attention"]
            return Gemma3TextConfig(
                **common,
                head_dim=16,
                query_pre_attn_scalar=16,
                sliding_window=SLIDING_WINDOW,
                layer_types=layers,
            )
        case "mistral":
            return MistralConfig(**common, head_dim=16, sliding_window=SLIDING_WINDOW)
        case "phi3":
            return Phi3Config(**common)


@torch.no_grad()
def _randomise_norms(model: PreTrainedModel) -> None:
    """Norms start as the identity, which would hide one that was left out or applied twice.

    Gemma's post-norms also bound what a layer adds to the residual stream, where the scaled embedding would
    otherwise win and make a tied model repeat its input.
    """
    for name, weight in model.named_parameters():
        if model.config.model_type == "gemma3_text" and "post_" in name:
            weight.uniform_(4.0, 12.0)
        elif "norm" in name:
            weight.uniform_(0.5, 1.5)


def build_model(folder: Path, kind: Kind, *, tied: bool = False, seed: int = 0) -> PreTrainedModel:
    """Save a random float32 model and its tokenizer in `folder`; equal seeds give equal weights."""
    tokenizer = build_tokenizer(folder)
    config = tiny_config(kind, tokenizer, tied)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _randomise_norms(model)
    model.eval().requires_grad_(False)
    model.save_pretrained(folder)
    return model
