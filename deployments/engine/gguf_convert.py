"""GGUF files, converted once to the layout that `from_pretrained` loads in well under a second.

transformers parses a GGUF file's metadata token by token, several times a load; the safetensors file that is
written here is mapped into memory instead.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.metadata import version
from pathlib import Path

from deployments.engine.model_cache import ModelSourceError, exclusive_scratch, publish

MARKER = "servegraph.json"

logger = logging.getLogger(__name__)


def convert_gguf(file: Path, sha256: str, cache: Path) -> Path:
    """Folder with the weights in float32, config and tokenizer of a GGUF file."""
    release = version("transformers")  # to import it would take seconds that a cached start saves
    key = f"{sha256[:16]}-transformers-{release}"
    target = cache / "converted" / key
    if (target / MARKER).is_file():
        return target
    with exclusive_scratch(cache, key) as scratch:
        if (target / MARKER).is_file():  # another process was first
            return target
        prepared = scratch / "entry"
        logger.info("converting %s once; this takes about half a minute for a small model", file.name)
        try:
            with _bars_for_people():
                _convert(file, prepared)
        except Exception as error:  # the parsers raise whatever a damaged file leads them to
            raise ModelSourceError(
                f"transformers {release} cannot convert {file}: {type(error).__name__}: {error}. If the disk "
                f"of {cache} is not full, the file is damaged or of an architecture that transformers does "
                "not know; try another file of the model, or its hub id."
            ) from error
        marker = {"file": file.name, "sha256": sha256, "transformers": release}
        (prepared / MARKER).write_text(json.dumps(marker))
        publish(prepared, target)
    logger.info("converted %s", file.name)
    return target


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for saved in folder.iterdir():
        # safetensors writes for its owner alone, but one user may build an image and another run it
        saved.chmod(0o644)


@contextmanager
def _bars_for_people() -> Iterator[None]:
    """Keep transformers' bars for a terminal; in a log file each of their updates would be a line.

    One of them is a plain tqdm that no setting of transformers turns off.
    """
    with open(os.devnull, "w") as nowhere:
        if sys.stderr.isatty():
            yield
        else:
            with redirect_stderr(nowhere):
                yield
