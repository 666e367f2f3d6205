"""A tiny experiment that goes through the whole pipeline, and the means to run and kill it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
PREFECT = str(Path(sys.executable).with_name("prefect"))

TINY: dict[str, Any] = {
    "name": "tiny",
    "model": {
        "scratch": {
            "model_type": "llama",
            "fixed": {
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "max_position_embeddings": 128,
            },
        },
        "tokenizer": {"train": {"vocab_size": 320}},
    },
    "data": {"held_out_fraction": 0.1, "max_length": 96, "split_bytes": 16_384},
    "train": {
        "max_steps": 30,
        "global_batch_size": 16,
        "micro_batch_size": 8,
        "learning_rate": 0.003,
        "checkpoint": {"every_steps": 5},
    },
    "evaluate": {"rows_per_task": 5, "max_new_tokens": 12},
    "export": {"proof_rows": 2, "require_stop": False},
    "compute": {"num_cpus": 2, "num_workers": 2},
}


@dataclasses.dataclass(frozen=True)
class Sandbox:
    """A folder with data, config, workspace, and Prefect's and modelmill's own folders.

    Attributes:
        folder: The folder.
        variables: Environment variables of every command that is run in it.
    """

    folder: Path
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])

    @property
    def config(self) -> Path:
        return self.folder / "tiny.yaml"

    @property
    def data(self) -> Path:
        return self.folder / "rows.jsonl"

    @property
    def workspace(self) -> Path:
        return self.folder / "runs"

    def environment(self, **extra: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
        return kept | {
            "PREFECT_HOME": str(self.folder / "prefect"),
            "MODELMILL_CACHE_DIR": str(self.folder / "cache"),
            **self.variables,
            **extra,
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "flows.cli", *arguments]

    def call(
        self, *arguments: str, env: dict[str, str] | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment() | (env or {}),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def run(self, *overrides: str, options: Sequence[str] = (), **kwargs: Any) -> dict[str, Any]:
        """`modelmill run --json`, which must end well; gives the printed object."""
        done = self.call("run", str(self.config), *overrides, "--json", *options, **kwargs)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def start(self, *overrides: str) -> subprocess.Popen[bytes]:
        """`modelmill run` in the background, in a session of its own."""
        log = (self.folder / "driver.log").open("ab")
        return subprocess.Popen(
            self.command("run", str(self.config), *overrides),
            cwd=self.folder,
            env=self.environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def model_sha256(self, result: dict[str, Any]) -> str:
        return result["stages"]["export"]["metrics"]["model_sha256"]


def write_sandbox(folder: Path, *, rows: int = 300, **changes: Any) -> Sandbox:
    """A sandbox with date questions as data; `changes` replace whole sections of the config."""
    from tasks.prepare.dates import generate_dates

    folder.mkdir(parents=True, exist_ok=True)
    sandbox = Sandbox(folder)
    lines = [json.dumps(row) for row in generate_dates(rows=rows, seed=3, part="train")]
    sandbox.data.write_text("\n".join(lines) + "\n")
    config = TINY | changes
    config["workspace"] = str(sandbox.workspace)
    config["data"] = {"sources": [{"path": str(sandbox.data)}]} | config["data"]
    sandbox.config.write_text(yaml.safe_dump(config))
    return sandbox


def wait_for(condition: Callable[[], Any], *, seconds: float = 180, what: str = "") -> Any:
    """Waits until `condition` gives something true, and gives it back."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s for {what or condition}")


def training_workers(driver_pid: int) -> list[psutil.Process]:
    """Ray's training worker processes below a driver, known by the name Ray gives them."""
    found: list[psutil.Process] = []
    for process in psutil.Process(driver_pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if "RayTrainWorker" in " ".join(process.cmdline()):
                found.append(process)
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process with its children."""
    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait(timeout=30)


@contextlib.contextmanager
def small_disk(folder: Path, size: int | str) -> Generator[Path]:
    """A tmpfs of this size (bytes, or as `mount` reads it); needs root."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def give_room(folder: Path) -> None:
    """Makes a small disk as large as it needs to be."""
    subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)
