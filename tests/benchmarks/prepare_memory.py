"""Peak memory of prepare over the number of rows: it must not grow with them.

    python tests/benchmarks/prepare_memory.py 10000 100000 1000000

Each size is prepared by a process of its own with a Ray of its own on two CPUs; the processes'
resident memory is sampled from outside. Prints a Markdown table: `driver` is the process that runs
the stage, `worker` the largest of Ray's worker processes, `all workers` their sum at its highest
and how many there were then: Ray starts and keeps idle ones as it sees fit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
SAMPLE_SECONDS = 0.2
WORDS = ("red", "green", "blue", "seven", "eight", "house", "river", "stone", "cloud", "paper")

DRIVER = """
import sys
from configs.experiment import Experiment
from tasks.artifacts import ArtifactStore
from tasks.base_model import resolve_base
from tasks.cluster import Cluster
from tasks.prepare.stage import PrepareStage, prepare_spec
from tasks.stage import Context, materialise
from tasks.storage import Location

experiment = Experiment.model_validate_json(sys.argv[1])
cluster = Cluster(experiment.compute)
context = Context(experiment, cluster=cluster)
store = ArtifactStore(Location(experiment.workspace))
spec = prepare_spec(experiment, resolve_base(experiment.model))
outcome = materialise(PrepareStage(), spec, {}, store, context)
assert outcome.result["rows_kept"] == int(sys.argv[2]), outcome.result
print(outcome.result["train_tokens"] + outcome.result["held_out_tokens"])
cluster.close()
"""


def write_rows(path: Path, count: int) -> None:
    """Short chat rows, each with a number of its own."""
    with path.open("w") as stream:
        for number in range(count):
            words = " ".join(WORDS[int(digit)] for digit in str(number))
            messages = [
                {"role": "user", "content": f"spell {number}"},
                {"role": "assistant", "content": words},
            ]
            stream.write(json.dumps({"messages": messages}) + "\n")


def config(folder: Path) -> str:
    """The experiment, with units of 512 KiB, so that the smallest size has several."""
    return json.dumps(
        {
            "name": "memory",
            "workspace": str(folder / "runs"),
            "model": {
                "scratch": {"model_type": "llama"},
                "tokenizer": {"train": {"vocab_size": 512, "max_rows": 10_000}},
            },
            "data": {
                "sources": [{"path": str(folder / "rows.jsonl")}],
                "split_bytes": 2**19,
                "packing": True,
            },
            "compute": {"num_cpus": 2},
        }
    )


def resident(process: psutil.Process) -> int:
    """Resident bytes; 0 for a process that has ended."""
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0


def workers(driver: psutil.Process) -> list[psutil.Process]:
    """Ray's worker processes below the driver."""
    found: list[psutil.Process] = []
    for process in driver.children(recursive=True):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::"):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, IndexError):
            continue
    return found


def measure(count: int) -> str:
    """A row of the table for this number of rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "rows.jsonl", count)
        environment = {
            **os.environ,
            "MODELMILL_CACHE_DIR": str(folder / "cache"),
            "RAY_AUTH_MODE": "disabled",
            "PYTHONPATH": str(ROOT),
        }
        began = time.monotonic()
        started = subprocess.Popen(
            [sys.executable, "-c", DRIVER, config(folder), str(count)],
            env=environment,
            stdout=subprocess.PIPE,
        )
        driver = psutil.Process(started.pid)
        largest_driver = largest_worker = 0
        together, count_then = 0, 0
        while started.poll() is None:
            sizes = [resident(process) for process in workers(driver)]
            largest_driver = max(largest_driver, resident(driver))
            largest_worker = max(largest_worker, *sizes, 0)
            together, count_then = max((together, count_then), (sum(sizes), len(sizes)))
            time.sleep(SAMPLE_SECONDS)
        seconds = time.monotonic() - began
        output, _ = started.communicate()
        assert started.returncode == 0, started.returncode
        peaks = (largest_driver, largest_worker, together)
        megabytes = " | ".join(f"{peak / 2**20:,.0f}" for peak in peaks)
        return f"| {count:,} | {int(output):,} | {megabytes} | {count_then} | {seconds:.0f} |"


def main() -> None:
    """Measure the sizes given on the command line."""
    print("| rows | tokens | driver (MiB) | worker (MiB) | all workers (MiB) | of them | seconds |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for count in map(int, sys.argv[1:]):
        print(measure(count), flush=True)


if __name__ == "__main__":
    main()
