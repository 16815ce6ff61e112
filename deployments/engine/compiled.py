"""The whole forward pass as one native library: torch.export, then Inductor ahead of time.

One library serves every batch, since all sizes in it are symbols. It holds no weights, so that it is
small, is kept in the cache, and loads in milliseconds at the next start.
"""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from pathlib import Path

import torch
import transformers
from torch.export import Dim
from transformers import PreTrainedModel

from .batch import PackedBatch
from .forward import NativeModel, PackedInputs, native_inputs
from .kernels.build import fingerprint
from .model_cache import exclusive_scratch, publish
from .model_shape import cache_shape

logger = logging.getLogger(__name__)

_PACKAGE = "model.pt2"
_EXTRAS = "constants.pt"
_OPTIONS = {"aot_inductor.package_constants_in_so": False}
_DYNAMIC: dict[str, dict[int, object]] = {
    "token_ids": {0: Dim.DYNAMIC},
    "positions": {0: Dim.DYNAMIC},
    "sample_rows": {0: Dim.DYNAMIC},
    "cache": {2: Dim.DYNAMIC},
    "slots": {0: Dim.DYNAMIC},
    "query_starts": {0: Dim.DYNAMIC},
    "context_lens": {0: Dim.DYNAMIC},
    "block_tables": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC},
}


class CompiledForward:
    """Runs the library on the model's own weights, without the interpreter's lock."""

    def __init__(self, model: PreTrainedModel, folder: Path) -> None:
        self._library = torch.classes.servegraph.CompiledModel(str(folder / _PACKAGE))
        native = NativeModel(model)
        known = dict(native.named_parameters()) | dict(native.named_buffers())
        known |= torch.load(folder / _EXTRAS, weights_only=True)
        self._constants = {name: known[name].detach() for name in self._library.constant_names()}
        self._library.set_constants(self._constants)

    def __call__(self, batch: PackedBatch, cache: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._library.run(list(native_inputs(batch, cache)))
        return logits


def compile_forward(model: PreTrainedModel, block_size: int, cache: Path) -> CompiledForward:
    """The compiled forward pass of a model with packed linear layers, from the cache if it was made before.

    Raises whatever torch.export or Inductor raise for a model that they cannot handle.
    """
    folder = cache / "compiled" / _key(model, block_size)
    if not (folder / _PACKAGE).is_file():
        with exclusive_scratch(cache, f"compiled-{folder.name}") as scratch:
            if not (folder / _PACKAGE).is_file():
                logger.info("compiling the model; this takes about a minute, and is done once")
                built = scratch / "built"
                built.mkdir()
                _compile(model, block_size, built)
                publish(built, folder)
    return CompiledForward(model, folder)


def _key(model: PreTrainedModel, block_size: int) -> str:
    """Changes with everything the library depends on; the weights are not among it."""
    config = model.config.to_json_string(use_diff=False)
    layout = [(name, list(t.shape), str(t.dtype)) for name, t in model.state_dict().items()]
    parts = [fingerprint(), transformers.__version__, str(block_size), config, str(layout), str(model.dtype)]
    for source in (Path(__file__), Path(__file__).with_name("forward.py")):
        parts.append(source.read_text())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(model: PreTrainedModel, block_size: int, folder: Path) -> None:
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = _example(model, block_size)
        exported = torch.export.export(
            NativeModel(model), inputs, dynamic_shapes=(tuple(_DYNAMIC.values()),), strict=False
        )
        torch.save(dict(exported.constants), folder / _EXTRAS)
        torch._inductor.aoti_compile_and_package(
            exported, package_path=os.fspath(folder / _PACKAGE), inductor_configs=_OPTIONS
        )


def _example(model: PreTrainedModel, block_size: int) -> PackedInputs:
    """A batch of which no two sizes are equal or 1, so that none is taken for a constant or for another."""
    layers, kv_heads, head_dim = cache_shape(model)
    num_sequences, queries, width, num_blocks, num_samples = 5, 3, 7, 37, 4
    num_tokens = num_sequences * queries
    integers = torch.zeros(num_tokens, dtype=torch.int64)
    return PackedInputs(
        integers,
        integers.clone(),
        torch.arange(num_samples),
        torch.zeros(layers, 2, num_blocks, block_size, kv_heads, head_dim, dtype=model.dtype),
        torch.arange(num_tokens),
        torch.arange(num_sequences + 1) * queries,
        torch.full((num_sequences,), queries),
        torch.zeros(num_sequences, width, dtype=torch.int64),
    )
