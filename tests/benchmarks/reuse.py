"""Wall-clock time of a run and of a plan that find everything there, with 1 and 1,000 source files.

python tests/benchmarks/reuse.py
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sandbox import Sandbox, write_sandbox

REPEATS = 5


def main() -> None:
    """Prints a Markdown table: median and largest of five calls, in seconds."""
    print("| command | source files | median s | largest s |")
    print("|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for files in (1, 1000):
            sandbox = write_sandbox(Path(folder) / str(files), rows=2000)
            if files > 1:
                _cut_into_files(sandbox, files)
            sandbox.run("train.max_steps=2")
            for command in ("run", "plan"):
                times = [_timed(sandbox, command) for _ in range(REPEATS)]
                median, largest = statistics.median(times), max(times)
                print(f"| {command} | {files:,} | {median:.2f} | {largest:.2f} |", flush=True)


def _cut_into_files(sandbox: Sandbox, files: int) -> None:
    lines = sandbox.data.read_text().splitlines(keepends=True)
    folder = sandbox.folder / "parts"
    folder.mkdir()
    share = len(lines) // files
    for number in range(files):
        part = folder / f"{number:04d}.jsonl"
        part.write_text("".join(lines[number * share : (number + 1) * share]))
    config = sandbox.config.read_text().replace(str(sandbox.data), str(folder))
    sandbox.config.write_text(config.replace("split_bytes: 1024", "split_bytes: 100000"))


def _timed(sandbox: Sandbox, command: str) -> float:
    began = time.monotonic()
    done = sandbox.call(command, str(sandbox.config), "train.max_steps=2", "--json")
    assert done.returncode == 0, done.stderr
    assert '"compute' not in done.stdout.replace('"computed', ""), done.stdout
    return time.monotonic() - began


if __name__ == "__main__":
    main()
