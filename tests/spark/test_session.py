"""Finding a Java, and what a session is started with (S9). The session itself: test_in_spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock.errors import JavaNotFound
from penstock.spark.java import find_java, java_version
from penstock.spark.sessions import (
    configuration,
    driver_memory,
    prepare_environment,
    worker_python,
)
from tests.docs.pages import ROOT


def java(home: Path, version: str, *, release: bool = True) -> Path:
    """Something that says it is a Java."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026' >&2\n")
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return home


def find(environ: dict[str, str], *places: Path) -> Path:
    return find_java(environ, tuple(map(str, places)))


@pytest.mark.parametrize(
    ("version", "number"), [("17.0.15", 17), ("21", 21), ("25.0.3", 25), ("1.8.0_392", 1)]
)
@pytest.mark.parametrize("release", [True, False])
def test_a_version_is_read_from_the_release_file_or_asked(
    tmp_path: Path, version: str, number: int, release: bool
) -> None:
    assert java_version(java(tmp_path / "jdk", version, release=release)) == number


def test_what_is_no_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path) is None
    broken = java(tmp_path / "broken", "17", release=False)
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert java_version(broken) is None


def test_java_home_comes_first_then_the_path_then_the_usual_places(tmp_path: Path) -> None:
    home, on_path = java(tmp_path / "a", "17.0.1"), java(tmp_path / "b", "21.0.1")
    usual = java(tmp_path / "jvm" / "c", "17.0.2")
    everywhere = {"JAVA_HOME": str(home), "PATH": str(on_path / "bin")}

    assert find(everywhere, tmp_path / "jvm" / "*") == home
    assert find({"PATH": str(on_path / "bin")}, tmp_path / "jvm" / "*") == on_path
    assert find({"PATH": str(tmp_path)}, tmp_path / "jvm" / "*") == usual


def test_a_java_of_another_version_is_passed_over(tmp_path: Path) -> None:
    """The `java` on the PATH need not be one that Spark runs on."""
    environ = {
        "JAVA_HOME": str(java(tmp_path / "old", "11.0.2")),
        "PATH": str(java(tmp_path / "new", "25.0.3") / "bin"),
    }
    fitting = java(tmp_path / "jvm" / "jdk-17", "17.0.15")

    assert find(environ, tmp_path / "jvm" / "*") == fitting


def test_no_java_at_all_and_only_wrong_ones_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFound, match="found neither") as nothing:
        find({"PATH": str(tmp_path)})
    assert "apt-get install openjdk-17-jre-headless" in nothing.value.hint

    old = java(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaNotFound, match=f"found only 11 in {old}"):
        find({"JAVA_HOME": str(old), "PATH": ""})


def test_the_environment_is_set_before_a_jvm_can_start(
    java_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9: an environment that is not activated runs this Python, not the one of the PATH."""
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "before")
    monkeypatch.setenv("JAVA_HOME", str(java_home))
    prepare_environment(is_local=False)
    assert os.environ["PYSPARK_PYTHON"] == "before", "on a cluster the path is another"

    prepare_environment()
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert os.environ["JAVA_HOME"] == str(java_home)


def test_workers_are_this_python_with_the_pyspark_that_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not with Spark's zipped copy of it, which each process compiles; the rest of a path stays."""
    installed = Path(pyspark.__file__).parent
    library = installed / "python" / "lib"
    [py4j] = library.glob("py4j-*-src.zip")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    code = "import pyspark, sys; print(sys.executable, pyspark.__file__, *sys.path)"
    started = subprocess.run(
        [worker_python(), "-c", code],
        env={
            "SPARK_HOME": str(installed),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": f"{library / 'pyspark.zip'}:{py4j}:/of/the/user",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    executable, found, *path = started.stdout.split()
    assert (executable, found) == (sys.executable, pyspark.__file__)
    assert "/of/the/user" in path
    assert str(py4j) not in path


def test_a_spark_of_ones_own_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert worker_python() == sys.executable


def test_a_local_session_stays_on_the_machine_and_is_quiet() -> None:
    conf = configuration("local[*]")

    assert conf["spark.driver.bindAddress"] == conf["spark.driver.host"] == "127.0.0.1"
    assert conf["spark.ui.enabled"] == "false"
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert int(conf["spark.sql.shuffle.partitions"]) <= 8
    log4j = conf["spark.driver.extraJavaOptions"].removeprefix("-Dlog4j2.configurationFile=file:")
    quiet = Path(log4j).read_text(encoding="utf-8")
    assert "rootLogger.level = error" in quiet
    assert "logger.gateway.level = error" in quiet, "Spark would speak of another level"


def test_a_cluster_gets_no_settings_of_one_machine() -> None:
    conf = configuration("spark://master:7077", conf={"spark.executor.memory": "4g", "n": 7})

    assert "spark.driver.bindAddress" not in conf
    assert "spark.driver.extraJavaOptions" not in conf
    assert (conf["spark.executor.memory"], conf["n"]) == ("4g", "7")


def test_what_the_caller_says_goes_over_what_is_set() -> None:
    conf = configuration("local[2]", ui=True, conf={"spark.driver.memory": "9g"})

    assert (conf["spark.ui.enabled"], conf["spark.driver.memory"]) == ("true", "9g")
    assert driver_memory() in {"1g", "2g", "3g", "4g"}


def test_importing_penstock_does_not_load_spark_and_the_source_is_cheap_to_find() -> None:
    code = (
        "import sys; import penstock, penstock.spark; assert 'pyspark' not in sys.modules;"
        "import pyspark.sql.datasource, pyspark_penstock;"
        "assert 'penstock.spark.source' not in sys.modules and 'pandas' not in sys.modules;"
        "print(pyspark_penstock.DefaultSource.name())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("penstock", "")


def test_the_script_that_finds_java_agrees(java_home: Path) -> None:
    """`make test` finds it by a script, before there is a Python."""
    done = subprocess.run(
        [ROOT / "tools" / "java.sh"], capture_output=True, text=True, check=True, timeout=60
    )
    assert java_version(Path(done.stdout.strip())) == java_version(java_home)
