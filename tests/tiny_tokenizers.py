"""Tokenizers of the kinds that models have, built in milliseconds, and the Tokenizer deployment over one."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from deployments.config import TokenizerConfig
from deployments.engine.config import EngineConfig, ModelConfig
from deployments.tokenizer import Tokenizer
from tests.tiny_models import build_tokenizer, tiny_config

MAX_MODEL_LEN = 256
SERVED_NAME = "tiny"


def tokenizer_replica(folder: Path, chat_template: str | None = None) -> Tokenizer:
    """What runs in a replica of the Tokenizer deployment, over the byte-level tokenizer of tiny models."""
    tiny_config("llama", build_tokenizer(folder), tied=False).save_pretrained(folder)
    template = None
    if chat_template is not None:
        template = folder / "template.jinja"
        template.write_text(chat_template)
    model = ModelConfig(source=str(folder), served_name=SERVED_NAME, chat_template=template)
    return Tokenizer(model, EngineConfig(max_model_len=MAX_MODEL_LEN), TokenizerConfig())


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """Like Llama 2's: `▁` for spaces, bytes for unknown characters, a first space that is stripped."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyz.,\n", "▁h", "▁he", "▁hel", "▁hell", "▁hello", "▁▁"]
    merges = [("▁", "h"), ("▁h", "e"), ("▁he", "l"), ("▁hel", "l"), ("▁hell", "o"), ("▁", "▁")]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def wordpiece_like() -> PreTrainedTokenizerFast:
    """Words joined by spaces, `##` where a word goes on."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["[UNK]", *letters, *(f"##{letter}" for letter in letters), "hel", "##lo"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(" "), "removed")
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
