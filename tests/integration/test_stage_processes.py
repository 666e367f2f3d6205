"""Two real processes want the same artifact: one works, and its death is noticed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]

# Makes two units; between them it waits until the gate (a file) is there.
PROGRAM = """
import dataclasses, json, logging, pathlib, sys, time
from configs.data import DataConfig, SourceConfig
from configs.experiment import Experiment
from configs.model import ModelConfig
from tasks.artifacts import ArtifactStore
from tasks.stage import Context, Stage, materialise
from tasks.storage import Location

workspace, gate = sys.argv[1], pathlib.Path(sys.argv[2])
logging.basicConfig(level=logging.INFO, format="log %(message)s", stream=sys.stdout)

def say(text):
    print(text, flush=True)

@dataclasses.dataclass(frozen=True)
class Result:
    units: int

class Slow(Stage[int, Result]):
    name, version = "slow", 1

    def identity(self, spec):
        return {"spec": spec}

    def run(self, context, spec, inputs, output):
        finished = output.finished_units()
        if finished:
            output.mark_resumed()
        for unit in ("a", "b"):
            if unit in finished:
                output.add_files(finished[unit].files)
                continue
            say(f"unit {unit}")
            entry = output.write_bytes(f"{unit}.txt", unit.encode(), unit=True)
            output.record_unit(unit, {f"{unit}.txt": entry}, {})
            output.add_files({f"{unit}.txt": entry})
            say(f"done {unit}")
            while not gate.exists() and not context.stop.wait(0.02):
                pass
        return Result(2)

data = DataConfig(sources=(SourceConfig(path="rows.jsonl"),))
context = Context(Experiment(name="toy", model=ModelConfig(base="folder"), data=data))
outcome = materialise(Slow(), 1, {}, ArtifactStore(Location(workspace)), context)
say("outcome " + json.dumps({
    "action": outcome.action, "attempt": outcome.artifact.manifest.attempt,
    "files": {name: outcome.artifact.read_bytes(name).decode() for name in ("a.txt", "b.txt")},
}))
"""

Start = Callable[[], subprocess.Popen[str]]


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


@pytest.fixture
def start(tmp_path: Path, gate: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "workspace"), str(gate)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"ended without saying {text!r}")


def outcome_of(process: subprocess.Popen[str]) -> dict[str, object]:
    line = read_until(process, "outcome ")
    assert process.wait(timeout=30) == 0
    return json.loads(line.removeprefix("outcome "))


def test_one_computes_while_the_other_waits_and_reuses(
    start: Start, gate: Path, tmp_path: Path
) -> None:
    first = start()
    read_until(first, "done a")
    second = start()
    waiting = read_until(second, "works on")
    assert f"process {first.pid} on" in waiting and "waiting" in waiting
    gate.touch()
    one, two = outcome_of(first), outcome_of(second)
    assert (one["action"], two["action"]) == ("computed", "reused")
    assert one["attempt"] == two["attempt"] and one["files"] == {"a.txt": "a", "b.txt": "b"}
    [artifact] = (tmp_path / "workspace" / "slow").iterdir()
    assert sorted(path.name for path in artifact.iterdir()) == ["attempts", "manifest.json"]
    assert len(list((artifact / "attempts").iterdir())) == 1


def test_killed_holder_is_taken_over_by_the_waiter_at_once(
    start: Start, gate: Path, tmp_path: Path
) -> None:
    first = start()
    read_until(first, "done a")
    second = start()
    read_until(second, "works on")
    first.send_signal(signal.SIGKILL)
    first.wait(timeout=30)
    # Not the 60 seconds of silence but the death of the process is the reason given.
    assert "has ended: taking over" in read_until(second, "taking over")
    gate.touch()
    outcome = outcome_of(second)
    assert outcome["action"] == "resumed" and outcome["files"] == {"a.txt": "a", "b.txt": "b"}
    [artifact] = (tmp_path / "workspace" / "slow").iterdir()
    assert len(list((artifact / "attempts").iterdir())) == 2


def test_lease_of_a_killed_run_does_not_hold_up_the_next(start: Start, gate: Path) -> None:
    first = start()
    read_until(first, "done a")
    first.send_signal(signal.SIGKILL)
    first.wait(timeout=30)
    gate.touch()
    second = start()
    assert "has ended: taking over" in read_until(second, "taking over")
    said = read_until(second, "unit ")
    assert said.strip() == "unit b"
    assert outcome_of(second)["action"] == "resumed"


def test_killed_holder_is_seen_while_nobody_has_reaped_it(start: Start, gate: Path) -> None:
    first = start()
    read_until(first, "done a")
    os.kill(first.pid, signal.SIGKILL)
    while psutil.Process(first.pid).status() != psutil.STATUS_ZOMBIE:
        pass
    gate.touch()
    second = start()
    assert "has ended: taking over" in read_until(second, "taking over")
    assert outcome_of(second)["action"] == "resumed"


def test_of_two_waiters_one_goes_on_after_the_holder_is_killed(start: Start, gate: Path) -> None:
    first = start()
    read_until(first, "done a")
    waiters = [start(), start()]
    for waiter in waiters:
        read_until(waiter, "works on")
    first.send_signal(signal.SIGKILL)
    first.wait(timeout=30)
    gate.touch()
    outcomes = [outcome_of(waiter) for waiter in waiters]
    assert sorted(str(outcome["action"]) for outcome in outcomes) == ["resumed", "reused"]
    assert outcomes[0]["attempt"] == outcomes[1]["attempt"]
