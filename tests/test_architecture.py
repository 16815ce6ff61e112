"""The arrows between the layers go one way, and what must be light to import is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
FORBIDDEN = {
    "deployments/engine": {"ray", "fastapi", "starlette", "app"},
    "deployments": {"app", "fastapi", "starlette"},
    "app": {"torch", "transformers", "tests"},
}


def imported(file: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, relative ones resolved."""
    package = file.relative_to(REPOSITORY).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            yield ".".join([*base, *([node.module] if node.module else [])])


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_no_layer_knows_those_above_it(folder: str) -> None:
    files = list((REPOSITORY / folder).rglob("*.py"))
    assert files
    for file in files:
        found = {name.split(".")[0] for name in imported(file)}
        assert not found & FORBIDDEN[folder], file
        if folder == "deployments/engine":
            outside = {n for n in imported(file) if n.startswith("deployments.")}
            assert all(name.startswith("deployments.engine") for name in outside), file


@pytest.mark.parametrize("module", ["app.builder", "app.ingress", "deployments.tokenizer"])
def test_the_graph_is_built_without_torch(module: str) -> None:
    """Serve imports the builder once more for each deploy, and the ingress in each of its replicas."""
    code = f"import sys, {module}; print({{'torch', 'transformers'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.stdout.strip() == "set()", done.stderr
