"""What a person sees in the terminal: progress while it runs, and what came of it."""

from __future__ import annotations

import datetime
import shlex
import shutil
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from configs.errors import ModelmillError
from flows.records import RunRecord
from flows.run import RunResult
from tasks.storage import Location

if TYPE_CHECKING:
    from flows.plan import Plan

ERR = Console(stderr=True, highlight=False)
OUT = Console(highlight=False)
SECONDS_BETWEEN_LINES = 5.0


class StageProgress:
    """A bar a stage on a terminal; elsewhere a line every few seconds. Writes to stderr."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=ERR,
            disable=not ERR.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._last_line = 0.0
        self._last_text = ""

    def __enter__(self) -> StageProgress:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def update(self, stage: str, done: float, total: float, note: str = "") -> None:
        """Shows that `done` of `total` units of a stage are finished."""
        if ERR.is_terminal:
            if stage not in self._tasks:
                self._tasks[stage] = self._bars.add_task(stage, note="")
            self._bars.update(
                self._tasks[stage], completed=done, total=max(total, 1), note=escape(note)
            )
        else:
            self._line(stage, done, total, note)

    def _line(self, stage: str, done: float, total: float, note: str) -> None:
        ended = done >= total
        text = f"{stage:<9} {done:g}/{total:g} {note}".rstrip()
        if text == self._last_text:
            return
        if ended or time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            ERR.print(escape(text))
            self._last_line, self._last_text = time.monotonic(), text


def show_error(error: ModelmillError) -> None:
    """Place, rule and hint, without a traceback."""
    ERR.print(f"[bold red]error[/] [dim]({error.code})[/] {escape(str(error))}", soft_wrap=True)


def show_stopped() -> None:
    """After Ctrl-C."""
    ERR.print("stopped; the same command goes on from here")


def show_summary(result: RunResult) -> None:
    """Rows, tokens, losses, scores, and where the model is."""
    lines = [
        (name, f"{outcome.action} in {outcome.seconds:.1f} s, {outcome.artifact.uri}")
        for name, outcome in result.stages.items()
    ]
    for key, value in [*lines, *_summary_lines(result)]:
        OUT.print(f"[dim]{key:<14}[/]{escape(value)}", soft_wrap=True)


def _summary_lines(result: RunResult) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    metrics = result.metrics
    if data := metrics.get("prepare"):
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in data["dropped"].items())
        lines += [
            ("rows in", f"{data['rows_read']:,}"),
            ("dropped", dropped or "none"),
            ("kept", f"{data['train_rows']:,} training, {data['held_out_rows']:,} held out"),
            ("tokens", f"{data['train_tokens']:,} ({data['trained_tokens']:,} trained)"),
        ]
    if trained := metrics.get("train"):
        lines.append(("loss", f"{trained['first_loss']:.4f} → {trained['last_loss']:.4f}"))
    if scored := metrics.get("evaluate"):
        before, after = scored["scores"]["base"], scored["scores"]["trained"]
        lines.append(("held-out loss", f"{before['loss']:.4f} → {after['loss']:.4f}"))
        if after["exact_match"] is not None:
            change = f"{before['exact_match']:.1%} → {after['exact_match']:.1%}"
            lines.append(("exact match", change))
    if "prepare" in result.stages:
        prepared = result.stages["prepare"].artifact
        report = prepared.location.join(prepared.manifest.files["report.md"].path)
        lines.append(("data report", report.uri))
    lines.append(("run", result.run_id))
    if "export" in result.stages:
        default = result.workspace == Location("runs").uri
        place = "" if default else f" --workspace {shlex.quote(result.workspace)}"
        lines += [
            ("model", str(result.path)),
            ("ask it", f'{_program()} predict {result.run_id} "YOUR QUESTION"{place}'),
        ]
    return lines


def _program() -> str:
    """How this shell calls `modelmill`: by its name, or by its path where PATH doesn't have it."""
    script = Path(sys.executable).with_name("modelmill")
    if shutil.which("modelmill") or not script.exists():
        return "modelmill"
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))


def show_plan(planned: Plan) -> None:
    """A line a stage, with the reason under it, and the estimates."""
    for stage in planned.stages:
        OUT.print(f"[bold]{stage.name:<9}[/] {stage.action:<8} {stage.fingerprint}")
        for reason in stage.why:
            OUT.print(f"          {escape(reason)}")
    OUT.print()
    for key, value in planned.estimate_lines():
        OUT.print(f"{key:<22} {escape(value)}")


def show_runs(records: list[RunRecord], workspace: str) -> None:
    """A line a run, the newest first."""
    if not records:
        OUT.print(f"no runs in {workspace}")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "name", "status", "started"):
        table.add_column(heading, no_wrap=True)
    table.add_column("stages")
    for record in records:
        stages = " ".join(f"{name}:{stage.action}" for name, stage in record.stages.items())
        started = datetime.datetime.fromtimestamp(record.started).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(record.run_id, record.name, record.status, started, stages)
    OUT.print(table)


def show_run(record: RunRecord) -> None:
    """One run: stages, their figures, and which artifact was made from which."""
    OUT.print(f"[bold]{record.run_id}[/]  {record.name}  {record.status}")
    if record.error:
        OUT.print(f"  {escape(record.error['where'])}: {escape(record.error['rule'])}")
    for name, stage in record.stages.items():
        made_from = ", ".join(f"{key} {value[:8]}" for key, value in stage.inputs.items())
        OUT.print(f"\n[bold]{name}[/] {stage.action} in {stage.seconds} s")
        OUT.print(f"  {stage.uri}" + (f"\n  from {made_from}" if made_from else ""))
        for key, value in stage.metrics.items():
            OUT.print(f"  {key:<22} {escape(str(value))}", soft_wrap=True)
