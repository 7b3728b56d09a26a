"""The archives that executors need (S9). No JVM."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from penstock.errors import InvalidInput
from penstock.spark.packaging import UNPACKED, package, package_dependencies


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "work" / "packed_shop"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "flows.py").write_text("X = 42\n")
    (folder / "query.sql").write_text("SELECT 1")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "flows.pyc").write_text("old")
    monkeypatch.chdir(folder.parent)
    monkeypatch.syspath_prepend(str(folder.parent))
    return "packed_shop.flows"


def test_the_zip_has_penstock_and_the_modules_whole_package(module: str, tmp_path: Path) -> None:
    packed = package(tmp_path / "out" / "shop.zip", [module])
    with zipfile.ZipFile(packed.file) as archive:
        names = set(archive.namelist())

    assert {"packed_shop/flows.py", "packed_shop/query.sql"} <= names
    assert {"penstock/hub.py", "penstock/stores/sqlite/sql/jobs.sql"} <= names
    assert "pyspark_penstock/__init__.py" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert packed.files == len(names)
    assert packed.conf == f"--conf spark.submit.pyFiles={packed.file}"


def test_the_same_files_make_the_same_zip(module: str, tmp_path: Path) -> None:
    first = package(tmp_path / "a.zip", [module])
    second = package(tmp_path / "b.zip", [module])
    assert Path(first.file).read_bytes() == Path(second.file).read_bytes()


def test_with_the_dependencies_a_bare_python_can_run_it(module: str, tmp_path: Path) -> None:
    """S9: as an executor has them: the zip on the path, the archive unpacked in a folder."""
    packed = package(tmp_path / "shop.zip", [module])
    needed = package_dependencies(tmp_path / "deps.tar.gz")
    with tarfile.open(needed.file) as archive:
        archive.extractall(tmp_path / UNPACKED, filter="data")
    program = (
        "import penstock, penstock.hub, apsw, msgspec, packed_shop.flows as flows\n"
        "print(flows.X, penstock.__file__, apsw.__file__)"
    )
    ran = subprocess.run(
        # -S and -I: without this environment's packages.
        [
            sys.executable,
            "-S",
            "-I",
            "-c",
            f"import sys; sys.path[:0] = {[packed.file, str(tmp_path / UNPACKED)]!r}\n{program}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("42 ")
    assert "shop.zip" in ran.stdout
    assert UNPACKED in ran.stdout
    assert needed.conf.startswith(f"--conf spark.archives={needed.file}#{UNPACKED}")


@pytest.mark.parametrize(
    ("file", "modules", "text"),
    [
        ("shop.tar", [], "is no .zip file"),
        ("shop.zip", ["no_such_module"], "no module 'no_such_module'"),
    ],
)
def test_what_cannot_be_packed_is_refused(
    tmp_path: Path, file: str, modules: list[str], text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        package(tmp_path / file, modules)
    assert not (tmp_path / file).exists()


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="cannot be written"):
        package(tmp_path / "file" / "shop.zip")
