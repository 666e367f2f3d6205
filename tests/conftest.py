"""Fixtures around the tiny experiment of `sandbox.py`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sandbox import PREFECT, Sandbox, end, wait_for, write_sandbox
from tiny_training import start_ray, write_prepared

from tasks.artifacts import Artifact

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("DO_NOT_TRACK", "1")
# A shell's background job begins with Ctrl-C ignored, and hands that on to what the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Files whose tests want `finished`, which takes a minute to make.
SHARE_FINISHED = (
    "test_flow_retries.py",
    "test_golden.py",
    "test_kill_and_resume.py",
    "test_left_behind.py",
    "test_reuse.py",
    "test_ways_to_run.py",
)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`: the files that share `finished` go to one process."""
    from xdist.scheduler import LoadFileScheduling

    class ByFileOrShare(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "finished" if file.endswith(SHARE_FINISHED) else file

    return ByFileOrShare(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return write_sandbox(tmp_path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sandbox, dict[str, Any]]:
    """A sandbox in which the tiny experiment was run once, undisturbed."""
    sandbox = write_sandbox(tmp_path_factory.mktemp("finished"))
    return sandbox, sandbox.run()


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """A Ray of the test module's own."""
    import ray

    start_ray()
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Prepared data for training, made without Ray."""
    folder = tmp_path_factory.mktemp("prepared")
    return write_prepared(folder, folder / "data")


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server of the test session's own; gives the URL of its API."""
    folder = tmp_path_factory.mktemp("prefect-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {"PREFECT_HOME": str(folder), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port), "--no-ui"],
            env=os.environ | settings,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}/api"
    try:
        wait_for(lambda: _healthy(url), what="the Prefect server")
        yield url
    finally:
        end(server)


def _healthy(api: str) -> bool:
    try:
        return httpx.get(f"{api}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def own_processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that a test starts; what is left of them and their children ends with the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        end(process)
