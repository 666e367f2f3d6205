"""Time from Ctrl-C or SIGTERM in mid-training until the workers, and the process, are gone.

python tests/benchmarks/stopping.py
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from sandbox import training_workers, wait_for, write_sandbox

REPEATS = 3


def main() -> None:
    """Prints a Markdown table, a line a stop, in seconds."""
    # A shell's background job begins with Ctrl-C ignored, and would hand that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("| signal | workers gone after s | process gone after s | exit code |")
    print("|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(REPEATS):
            for chosen in (signal.SIGINT, signal.SIGTERM):
                _stop(Path(folder) / f"{chosen.name}{number}", chosen)


def _stop(folder: Path, chosen: signal.Signals) -> None:
    sandbox = write_sandbox(folder)
    driver = sandbox.start("train.max_steps=100000")
    pattern = "train/*/attempts/*/checkpoints/*/complete.json"
    wait_for(lambda: list(sandbox.workspace.glob(pattern)), what="a checkpoint")
    workers = training_workers(driver.pid)
    os.kill(driver.pid, chosen)
    began = time.monotonic()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert workers and not alive
    workers_gone = time.monotonic() - began
    code = driver.wait(timeout=120)
    process_gone = time.monotonic() - began
    print(f"| {chosen.name} | {workers_gone:.1f} | {process_gone:.1f} | {code} |", flush=True)


if __name__ == "__main__":
    main()
