"""How prepare works: tokenizer, units on Ray, plan, report; what an attempt finished is kept."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from configs.errors import DataError
from tasks.artifacts import OpenArtifact
from tasks.errors import storage_errors
from tasks.files import FileEntry
from tasks.prepare.make_tokenizer import make_tokenizer
from tasks.prepare.pipeline import UnitJob, make_units
from tasks.prepare.plan import PlannedShard, PlanTotals, write_plan
from tasks.prepare.recognise import recognise
from tasks.prepare.report import (
    Reading,
    Report,
    SampleRow,
    check_rejected,
    file_list,
    percentiles,
    source_list,
    summarise,
)
from tasks.prepare.stage import (
    PrepareResult,
    PrepareSpec,
    PrepareStage,
    check_tokenizer_unchanged,
)
from tasks.prepare.tokenizer import (
    TokenizerFolder,
    decoded,
    folder_hash,
    load_tokenizer,
)
from tasks.prepare.units import UnitResult
from tasks.stage import Context

_TOKENIZER_UNIT = "tokenizer"
_NUM_SAMPLES = 3
_SAMPLE_TOKENS = 1000


class Preparation:
    """One attempt at preparing data.

    Args:
        context: The execution side.
        spec: What to prepare.
        output: The open artifact.
    """

    def __init__(self, context: Context, spec: PrepareSpec, output: OpenArtifact) -> None:
        self._context, self._spec, self._output = context, spec, output
        self._versions = PrepareStage().versions()
        # Units made under other versions may hold other ids: one artifact, one set of versions.
        self._finished = {
            name: unit
            for name, unit in output.finished_units().items()
            if unit.meta["versions"] == self._versions
        }

    def run(self) -> PrepareResult:
        """Does what is missing and writes plan and report; see `PrepareStage.run`."""
        self._output.add_numerics({"attempt": self._output.attempt, "versions": self._versions})
        if self._finished:
            self._output.mark_resumed()
        with tempfile.TemporaryDirectory(prefix="modelmill-") as scratch:
            self._inputs = recognise(self._spec.files, self._spec.data)
            folder = Path(scratch, "tokenizer")
            tokenizer_files = self._tokenizer(folder)
            tokenizer = load_tokenizer(folder, self._spec.data.stop_tokens)
            results = self._units(tokenizer_files)
            reading = summarise(results, self._spec.files)
            check_rejected(reading, self._spec.data.limits.max_rejected)
            totals = self._plan(results, reading, Path(scratch))
            return self._report(results, reading, totals, tokenizer, folder_hash(folder))

    def _tokenizer(self, folder: Path) -> dict[str, FileEntry]:
        """Puts the tokenizer into a folder and into the artifact; its files by name."""
        done = self._finished.get(_TOKENIZER_UNIT)
        if done is not None:
            self._output.add_files(done.files)
            for name, entry in done.files.items():
                self._output.root.join(entry.path).download(folder.parent / name)
            return {Path(name).name: entry for name, entry in done.files.items()}
        make_tokenizer(self._spec, self._inputs, folder)
        check_tokenizer_unchanged(self._spec)
        entries = {
            path.name: self._output.upload(f"tokenizer/{path.name}", path)
            for path in sorted(folder.iterdir())
        }
        logical = {f"tokenizer/{name}": entry for name, entry in entries.items()}
        self._output.record_unit(_TOKENIZER_UNIT, logical, {"versions": self._versions})
        return entries

    def _units(self, tokenizer: dict[str, FileEntry]) -> list[UnitResult]:
        """All units in order; those that no attempt has finished are made on Ray."""
        units = self._inputs.units()
        results = {
            unit.number: UnitResult.from_record(unit, record.files, record.meta)
            for unit in units
            if (record := self._finished.get(unit.name)) is not None
        }
        missing = [unit for unit in units if unit.number not in results]
        total = sum(unit.num_bytes for unit in units)
        done = total - sum(unit.num_bytes for unit in missing)
        self._context.progress.update("prepare", done, total, "bytes of source")
        if missing:
            cluster = self._context.cluster
            assert cluster is not None, "prepare needs Ray"
            cluster.connect()
            num_workers = min(cluster.num_cpus, len(missing))
            job = UnitJob(
                data=self._inputs.data,
                output=self._output,
                tokenizer=tokenizer,
                num_threads=max(1, cluster.num_cpus // num_workers),
            )
            for result in make_units(
                missing,
                self._inputs,
                job,
                num_workers=num_workers,
                stop=self._context.stop,
            ):
                results[result.unit.number] = result
                done += result.unit.num_bytes
                self._context.progress.update("prepare", done, total, "bytes of source")
        return [results[unit.number] for unit in units]

    def _plan(self, results: Sequence[UnitResult], reading: Reading, scratch: Path) -> PlanTotals:
        folder = scratch / "plan"
        folder.mkdir()
        shards = (
            PlannedShard(
                name=f"shards/{result.unit.name}.arrow",
                index=self._output.root.join(result.index.path).read_bytes(),
                first_line=first_line,
            )
            for result, first_line in zip(results, reading.first_lines, strict=True)
        )
        with storage_errors(str(folder)):
            totals = write_plan(shards, self._spec.data, folder, moved_hash=reading.moved_hash)
        if totals.rows["train"] == 0:
            raise DataError(
                f"no row is left to train on: {reading.rows_read:,} were read, "
                f"{totals.rows['held_out']:,} of them are held out",
                where="data.sources",
                hint=_why_dropped(reading) or "give more rows",
                code="no_training_rows",
            )
        if totals.rows["held_out"] == 0:
            reasons = _why_dropped(reading)
            raise DataError(
                "no row is left to evaluate on and to prove the export with: "
                f"none of {totals.rows['train']:,} is held out",
                where="data.sources",
                hint="give a source split: auto, or add one with split: held_out"
                + (f"; {reasons}" if reasons else ""),
                code="no_held_out_rows",
            )
        for path in sorted(folder.iterdir()):
            self._output.upload(f"plan/{path.name}", path)
        for result in results:
            self._output.add_files({f"shards/{result.unit.name}.arrow": result.shard})
        return totals

    def _report(
        self,
        results: Sequence[UnitResult],
        reading: Reading,
        totals: PlanTotals,
        tokenizer: TokenizerFolder,
        tokenizer_sha256: str,
    ) -> PrepareResult:
        template = tokenizer.chat_template
        result = PrepareResult(
            rows_read=reading.rows_read,
            rows_kept=totals.rows.total(),
            dropped=dict(reading.dropped),
            train_rows=totals.rows["train"],
            held_out_rows=totals.rows["held_out"],
            train_sequences=totals.sequences["train"],
            train_tokens=totals.tokens["train"],
            trained_tokens=totals.trained["train"],
            held_out_tokens=totals.tokens["held_out"],
            vocab_size=tokenizer.tokenizer.get_vocab_size(with_added_tokens=True),
            max_length=self._spec.data.max_length,
            tokenizer_sha256=tokenizer_sha256,
            template_sha256=template and hashlib.sha256(template.encode()).hexdigest(),
        )
        report = Report(
            rows={
                "read": result.rows_read,
                "kept": result.rows_kept,
                "train": result.train_rows,
                "held_out": result.held_out_rows,
            },
            dropped=reading.dropped,
            notes=reading.notes,
            sequences={"train": result.train_sequences, "held_out": totals.sequences["held_out"]},
            tokens={
                "train": result.train_tokens,
                "held_out": result.held_out_tokens,
                "trained": result.trained_tokens,
            },
            trained_share=result.trained_tokens / result.train_tokens,
            lengths=percentiles(totals.lengths),
            tokenizer_sha256=tokenizer_sha256,
            template_sha256=result.template_sha256,
            sources=source_list(self._inputs, reading),
            files=file_list(self._inputs),
            samples=list(islice(self._samples(results, reading, tokenizer), _NUM_SAMPLES)),
            rejected=reading.rejected,
        )
        self._output.write_bytes("report.json", report.to_json())
        self._output.write_bytes("report.md", report.to_markdown())
        return result

    def _samples(
        self, results: Sequence[UnitResult], reading: Reading, tokenizer: TokenizerFolder
    ) -> Iterator[SampleRow]:
        """The rows of the shards as their tokens decode, from the first on."""
        for result, first_line in zip(results, reading.first_lines, strict=True):
            filesystem, path = self._output.root.join(result.shard.path).arrow()
            with filesystem.open_input_file(path) as stream:
                shard: Any = pa.ipc.open_file(stream)
                for number in range(shard.num_record_batches):
                    for row in shard.get_batch(number).slice(0, _NUM_SAMPLES).to_pylist():
                        yield SampleRow(
                            file=self._spec.files[row["source"]].uri,
                            line=row["line"] + first_line - 1,
                            parts=_sample_parts(tokenizer, row["input_ids"], row["trained"]),
                        )


def _sample_parts(
    tokenizer: TokenizerFolder, input_ids: list[int], trained: list[bool]
) -> tuple[tuple[str, bool], ...]:
    """The text of each run of tokens that are all trained, or all not."""
    parts = decoded(tokenizer, input_ids[:_SAMPLE_TOKENS], trained)
    runs = groupby(parts, key=lambda part: part.trained)
    return tuple(("".join(part.text for part in run), on) for on, run in runs)


def _why_dropped(reading: Reading) -> str:
    if not reading.dropped:
        return ""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in reading.dropped.items())
    return "\n  ".join([f"dropped: {reasons}", *map(str, reading.rejected)])
