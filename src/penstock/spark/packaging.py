"""The archives that a cluster's executors need, where penstock is not installed on them.

Python code travels in a zip, for `spark.submit.pyFiles`. What is compiled (SQLite, msgspec, zstd)
cannot be imported from a zip: it travels in an archive that executors unpack, `spark.archives`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import os
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from penstock.errors import InvalidInput
from penstock.spark.programs import import_program

OWN = ("penstock", "pyspark_penstock")
UNPACKED = "penstock_deps"
"""The folder of an executor that the archive is unpacked into."""
LEFT_OUT = ("__pycache__", ".pyc", ".so.debug")
# On executors there is Spark already; and pandas and pyarrow are Spark's own needs.
NOT_NEEDED = frozenset({"pyspark", "py4j", "typer", "rich"})
# Same bytes from the same files, whenever they are packed.
EPOCH = (1980, 1, 1, 0, 0, 0)


class Packed(msgspec.Struct, frozen=True):
    """An archive, and how Spark is told of it."""

    file: str
    files: int
    what: str
    conf: str


def package(file: str | os.PathLike[str], modules: Sequence[str] = ()) -> Packed:
    """Pack penstock and these modules, with the packages they are in, as a zip."""
    target = Path(file)
    if target.suffix not in (".zip", ".egg"):
        raise InvalidInput(f"{str(target)!r} is no .zip file.", hint="Spark takes .zip and .py.")
    entries: dict[str, Path] = {}
    for name in OWN:
        entries |= _package_files(name)
    for module in modules:
        import_program(module)
        entries |= _package_files(module.partition(".")[0])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(entries.items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
    _put(target, buffer.getvalue())
    what = ", ".join(["penstock", *modules])
    return Packed(str(target), len(entries), what, f"--conf spark.submit.pyFiles={target}")


def package_dependencies(file: str | os.PathLike[str]) -> Packed:
    """Pack what penstock's core needs, as it is installed here, for executors like this machine."""
    target = Path(file)
    if not target.name.endswith((".tar.gz", ".tgz")):
        raise InvalidInput(f"{str(target)!r} is no .tar.gz file.", hint="Spark unpacks those.")
    names = sorted(_needed("penstock"))
    entries: dict[str, Path] = {}
    for name in names:
        entries |= dict(_distribution_files(name))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, path in sorted(entries.items()):
            archive.add(path, name, recursive=False)
    _put(target, buffer.getvalue())
    version = f"Python {sys.version_info.major}.{sys.version_info.minor}, {_platform()}"
    return Packed(
        str(target),
        len(entries),
        f"{', '.join(names)} for {version}",
        f"--conf spark.archives={target}#{UNPACKED} "
        f"--conf spark.executorEnv.PYTHONPATH=./{UNPACKED}",
    )


def _package_files(name: str) -> dict[str, Path]:
    """The files of a top-level module or package, by their names in the zip."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise InvalidInput(f"The module {name!r} has no files to pack.")
    origin = Path(spec.origin)
    if not spec.submodule_search_locations:
        return {origin.name: origin}
    root = origin.parent
    return {
        str(Path(name) / path.relative_to(root)): path
        for path in root.rglob("*")
        if path.is_file() and not _is_left_out(path)
    }


def _needed(name: str) -> set[str]:
    """The distributions that one needs to run, and those that they need."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for requirement in importlib.metadata.requires(waiting.pop()) or []:
            if "extra ==" in requirement or "extra==" in requirement:
                continue
            match = re.match(r"[A-Za-z0-9._-]+", requirement)
            assert match is not None, requirement
            needed = match[0].lower().replace("_", "-")
            if needed in found or needed in NOT_NEEDED or not _is_installed(needed):
                continue
            found.add(needed)
            waiting.append(needed)
    return found


def _is_installed(name: str) -> bool:
    """One that is for another platform is not."""
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _distribution_files(name: str) -> Iterator[tuple[str, Path]]:
    for file in importlib.metadata.files(name) or []:
        path = Path(str(file.locate()))
        # Its commands lie outside of the folder that is searched for modules.
        if not str(file).startswith("..") and path.is_file() and not _is_left_out(path):
            yield str(file), path


def _is_left_out(path: Path) -> bool:
    return any(part.endswith(LEFT_OUT) for part in path.parts)


def _platform() -> str:
    return f"{sys.platform} {os.uname().machine}"


def _put(target: Path, data: bytes) -> None:
    """Whole or not at all: a half archive would break every executor."""
    partial = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        partial.rename(target)
    except OSError as error:
        raise InvalidInput(f"{target} cannot be written: {error.strerror}.") from error
