"""The Ray Data pipeline that makes units: one row in is one unit, one row out is its record.

Only what a unit counted comes back to the driver, so its memory doesn't grow with the rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from configs.data import DataConfig
from configs.errors import ModelmillError
from tasks.artifacts import OpenArtifact
from tasks.errors import ray_errors
from tasks.files import FileEntry
from tasks.prepare.recognise import Inputs
from tasks.prepare.splits import Unit
from tasks.prepare.tokenizer import load_tokenizer
from tasks.prepare.units import UnitMaker, UnitResult

_BLOCKS_PER_WORKER = 64
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class UnitJob:
    """What every worker gets.

    Attributes:
        data: The `data` section.
        output: The open artifact.
        tokenizer: Files of the tokenizer, by name, in the artifact.
        num_threads: Threads a worker tokenises with.
    """

    data: DataConfig
    output: OpenArtifact
    tokenizer: dict[str, FileEntry]
    num_threads: int


def make_unit(row: dict[str, Any], job: bytes) -> dict[str, Any]:
    """Makes one unit in a Ray task; an error that a user can cause comes back as a value.

    Args:
        row: `work`: the unit and its files, pickled.
        job: The `UnitJob`, pickled.
    """
    unit, inputs = pickle.loads(row["work"])
    try:
        result = _maker(job).make(unit, inputs)
    except ModelmillError as error:
        return {"unit": unit.number, "record": "", "error": pickle.dumps(error)}
    record = {
        "files": {name: asdict(entry) for name, entry in result.files.items()},
        "meta": result.meta,
    }
    return {"unit": unit.number, "record": json.dumps(record), "error": b""}


@lru_cache(maxsize=1)
def _maker(job: bytes) -> UnitMaker:
    """The maker of a job: a worker process loads the tokenizer once."""
    content: UnitJob = pickle.loads(job)
    # Read once, when the first batch is tokenised: by default every worker takes all cores.
    os.environ["RAYON_NUM_THREADS"] = str(content.num_threads)
    with tempfile.TemporaryDirectory(prefix="modelmill-") as folder:
        for name, entry in content.tokenizer.items():
            content.output.root.join(entry.path).download(Path(folder, name))
        tokenizer = load_tokenizer(Path(folder), content.data.stop_tokens)
    return UnitMaker(tokenizer, content.data, content.output)


def make_units(
    units: Sequence[Unit],
    inputs: Inputs,
    job: UnitJob,
    *,
    num_workers: int,
    stop: threading.Event,
) -> Iterator[UnitResult]:
    """Makes units on Ray and yields them as they are finished, in no certain order.

    Args:
        units: The units to make.
        inputs: All files; a unit gets only its own.
        job: What every worker gets.
        num_workers: Tasks that work at the same time.
        stop: Ends the iteration when set.

    Raises:
        ModelmillError: The run was stopped (`stopped`), or what a unit failed with.
        ResourceError: Workers or Ray itself were lost (`worker_lost`).
    """
    by_number = {unit.number: unit for unit in units}
    rows = [{"work": pickle.dumps((unit, inputs.of(unit)))} for unit in units]
    for row in _until_stopped(rows, job, min(num_workers, len(rows)), stop):
        if row["error"]:
            raise pickle.loads(row["error"])
        record = json.loads(row["record"])
        entries = {name: FileEntry(**entry) for name, entry in record["files"].items()}
        yield UnitResult.from_record(by_number[row["unit"]], entries, record["meta"])


def _until_stopped(
    rows: list[dict[str, Any]], job: UnitJob, num_workers: int, stop: threading.Event
) -> Iterator[dict[str, Any]]:
    """What the pipeline gives, until `stop` is set.

    Ray Data runs in a Ray task: its threads would outlive the iteration here, start another Ray
    once this one is shut down, and write into the driver's terminal.
    """
    import ray
    from ray.exceptions import RayError

    task: Any = ray.remote(num_cpus=0)(_run_pipeline)
    # Not tried again by Ray: it would skip as many results as it gave, but in another order.
    stream = task.options(num_returns="streaming", max_retries=0).remote(
        rows, pickle.dumps(job), num_workers
    )
    try:
        while not stop.is_set():
            with ray_errors():
                # Short waits: a signal's handler runs only between them.
                if not ray.wait([stream], timeout=_POLL_SECONDS)[0]:
                    continue
                try:
                    row: Any = ray.get(next(stream))
                except StopIteration:
                    return
            yield row
    finally:
        with contextlib.suppress(RayError):
            ray.cancel(stream)
    raise ModelmillError(
        "the run was stopped",
        where="prepare",
        hint="run the same command again: finished units are kept",
        code="stopped",
    )


def _run_pipeline(
    rows: list[dict[str, Any]], job: bytes, num_workers: int
) -> Iterator[dict[str, Any]]:
    import ray.data

    num_blocks = min(len(rows), num_workers * _BLOCKS_PER_WORKER)
    made = ray.data.from_items(rows, override_num_blocks=num_blocks).map(
        partial(make_unit, job=job),
        compute=ray.data.TaskPoolStrategy(size=num_workers),
        num_cpus=1,
    )
    yield from made.iter_rows()
