"""A Java that Spark runs on: 17 or 21, wherever it is."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.errors import JavaNotFound

VERSIONS = (17, 21)
PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
)

_IN_RELEASE = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)
_IN_OUTPUT = re.compile(r'version "(\d+)')


def find_java(environ: Mapping[str, str] = os.environ, places: tuple[str, ...] = PLACES) -> Path:
    """The home of the first that fits: $JAVA_HOME, the `java` on the PATH, the usual places.

    Raises `JavaNotFound`, which tells what was found instead.
    """
    found: dict[Path, int | None] = {}
    for home in _candidates(environ, places):
        if home not in found:
            found[home] = java_version(home)
            if found[home] in VERSIONS:
                return home
    others = [f"{version} in {home}" for home, version in found.items() if version is not None]
    if others:
        raise JavaNotFound(f"Spark needs Java 17 or 21, and found only {', '.join(others)}.")
    raise JavaNotFound


def java_version(home: Path) -> int | None:
    """Its major version; None if there is no Java that runs."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        match = _IN_RELEASE.search((home / "release").read_text(encoding="utf-8"))
    except OSError:
        match = None
    if match is None:
        command = [str(home / "bin" / "java"), "-version"]
        try:
            output = subprocess.run(command, capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            return None
        match = _IN_OUTPUT.search(output.stderr)
    return None if match is None else int(match[1])


def _candidates(environ: Mapping[str, str], places: tuple[str, ...]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH"))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    for place in places:
        for home in sorted(glob.glob(os.path.expanduser(place))):
            yield Path(home).resolve()
