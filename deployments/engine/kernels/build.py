"""Compiles the kernels for this machine's instruction set, once, and makes them known to torch."""

from __future__ import annotations

import hashlib
import logging
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from ..model_cache import exclusive_scratch, publish

logger = logging.getLogger(__name__)

_SOURCES = Path(__file__).parent
_FLAGS = ["-O3", "-march=native", "-std=c++20", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]
_LIBRARY = "libservegraph.so"


class KernelsUnavailableError(RuntimeError):
    """The kernels cannot be built here; the text says why in one line."""


def is_loaded() -> bool:
    return hasattr(torch.ops.servegraph, "paged_attention")


def load_kernels(cache: Path) -> None:
    """Make torch.ops.servegraph usable, compiling it into `cache` first where it is not there yet.

    Raises KernelsUnavailableError without a working C++ compiler.
    """
    if is_loaded():
        return
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise KernelsUnavailableError("there is no C++ compiler (g++ or clang++)")
    folder = cache / "kernels" / fingerprint()
    try:
        if not (folder / _LIBRARY).is_file():
            _build(compiler, folder, cache)
        torch.ops.load_library(folder / _LIBRARY)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise KernelsUnavailableError(str(error)) from error
    _register_shapes()


def fingerprint() -> str:
    """Changes with the sources, torch, and the processor, for whose instructions the code is made."""
    digest = hashlib.sha256(" ".join([*_FLAGS, torch.__version__, _processor()]).encode())
    for file in _source_files():
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _source_files() -> list[Path]:
    return sorted([*_SOURCES.glob("*.h"), *_SOURCES.glob("*.cpp")])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def _build(compiler: str, folder: Path, cache: Path) -> None:
    with exclusive_scratch(cache, f"kernels-{folder.name}") as scratch:
        if (folder / _LIBRARY).is_file():  # another process was faster
            return
        logger.info("compiling the CPU kernels; this is done once")
        root = Path(torch.__file__).parent
        includes = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
        built = scratch / "built"
        built.mkdir()

        def compile_one(source: Path) -> str:
            target = str(scratch / f"{source.stem}.o")
            _run([compiler, *_FLAGS, *includes, "-c", str(source), "-o", target])
            return target

        with ThreadPoolExecutor() as pool:
            objects = list(pool.map(compile_one, _SOURCES.glob("*.cpp")))
        libraries = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"]
        _run([compiler, "-shared", "-fopenmp", *objects, *libraries, "-o", str(built / _LIBRARY)])
        publish(built, folder)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise KernelsUnavailableError(f"{command[0]} failed: {lines[0] if lines else 'no message'}")


def _register_shapes() -> None:
    """What the operators return, for the tracing of a model."""

    @torch.library.register_fake("servegraph::linear")
    def _(
        x: torch.Tensor,
        packed: torch.Tensor,
        scales: torch.Tensor | None,
        bias: torch.Tensor | None,
        outputs: int,
        float_output: bool,
    ) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], outputs), dtype=torch.float32 if float_output else x.dtype)

    @torch.library.register_fake("servegraph::paged_attention")
    def _(query: torch.Tensor, *_: object) -> torch.Tensor:
        return query.new_empty(query.shape)
