"""Fixtures around the tiny experiment of `sandbox.py`."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sandbox import Sandbox, write_sandbox

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("DO_NOT_TRACK", "1")


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return write_sandbox(tmp_path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sandbox, dict[str, Any]]:
    """A sandbox in which the tiny experiment was run once, undisturbed."""
    sandbox = write_sandbox(tmp_path_factory.mktemp("finished"))
    return sandbox, sandbox.run()


@pytest.fixture
def own_processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that a test starts; what is left of them and their children ends with the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        with_children: list[psutil.Process] = []
        try:
            parent = psutil.Process(process.pid)
            with_children = [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            pass
        for one in with_children:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait(timeout=30)
