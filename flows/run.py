"""A run of an experiment: which stages there are, what each needs, and what became of it.

Light: asking a run what is there imports neither Prefect, Ray, torch nor `transformers`. The flow
in `flows.finetune` calls `Run.stage` once a stage. What is true about completion is in the
artifacts' manifests; the record in `<workspace>/runs/` is for people.
"""

from __future__ import annotations

import contextlib
import logging
import os
import posixpath
import threading
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from configs.document import plain_value
from configs.errors import ModelmillError, ResourceError
from configs.experiment import Experiment
from flows.notes import left_behind, notes_folder
from flows.records import RunRecord, StageRecord, new_run_id
from tasks.artifacts import Artifact, ArtifactStore
from tasks.base_model import resolve_base
from tasks.cluster import Cluster, check_before_start
from tasks.evaluate.stage import EvaluateStage, evaluate_spec
from tasks.export.stage import ExportStage, export_spec
from tasks.initial_weights import check_architecture
from tasks.prepare.stage import PrepareStage, prepare_spec
from tasks.stage import (
    Context,
    Expectation,
    NoProgress,
    Outcome,
    Progress,
    Stage,
    expect,
    is_proven,
    materialise,
)
from tasks.storage import Location
from tasks.train.stage import TrainStage, train_spec

StageName = Literal["prepare", "train", "evaluate", "export"]
STAGES: tuple[StageName, ...] = ("prepare", "train", "evaluate", "export")


@dataclass(frozen=True)
class Node:
    """One stage of the DAG with what it is asked to do and the stages whose artifacts it reads."""

    stage: Stage[Any, Any]
    spec: Any
    needs: tuple[StageName, ...]


def dag(experiment: Experiment) -> dict[StageName, Node]:
    """The stages of an experiment in order.

    Raises:
        ConfigError: The base model or tokenizer isn't one.
        DataError: A source isn't there.
    """
    base = resolve_base(experiment.model, experiment.compute.storage_options)
    evaluated: tuple[StageName, ...] = ("prepare", "train")
    return {
        "prepare": Node(PrepareStage(), prepare_spec(experiment, base), ()),
        "train": Node(TrainStage(), train_spec(experiment, base), ("prepare",)),
        "evaluate": Node(EvaluateStage(), evaluate_spec(experiment, base), evaluated),
        "export": Node(ExportStage(), export_spec(experiment, base), (*evaluated, "evaluate")),
    }


@dataclass(frozen=True)
class RunResult:
    """What a run came to.

    Attributes:
        run_id: Name of its record in `<workspace>/runs/`.
        workspace: Where its artifacts are.
        status: `completed` or `failed`.
        stages: Outcome of each stage that ended well, by name.
        error: Why it failed; None if it didn't.
        path: URI of the exported model, or of the last artifact there is.
    """

    run_id: str
    workspace: str
    status: Literal["completed", "failed"]
    stages: Mapping[str, Outcome]
    error: ModelmillError | None = None

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Result figures of each stage."""
        return {name: outcome.result for name, outcome in self.stages.items()}

    @property
    def checkpoint(self) -> Artifact | None:
        """The trained weights (`model/` in the train artifact)."""
        return self.stages["train"].artifact if "train" in self.stages else None

    @property
    def path(self) -> str | None:
        """Where the exported model is, or the last artifact that there is."""
        if not self.stages:
            return None
        artifact = list(self.stages.values())[-1].artifact
        config = artifact.manifest.files.get("model/config.json")
        if "export" not in self.stages or config is None:
            return artifact.uri
        return artifact.location.join(posixpath.dirname(config.path)).uri

    def raise_for_error(self) -> RunResult:
        """Itself, if the run ended well.

        Raises:
            ModelmillError: The error that ended the run.
        """
        if self.error is not None:
            raise self.error
        return self

    def as_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        shown: dict[str, Any] = {
            "run_id": self.run_id,
            "status": self.status,
            "stages": {
                name: StageRecord.of(outcome).as_dict() for name, outcome in self.stages.items()
            },
        }
        if self.error is not None:
            shown["error"] = self.error.as_dict()
        return shown


@dataclass
class Run:
    """One run, from its first question to its last stage. Not a value: it changes as stages end."""

    experiment: Experiment
    until: StageName = "export"
    progress: Progress = field(default_factory=NoProgress)
    verify: bool = False
    run_id: str = field(default_factory=new_run_id)
    flow_run_id: str | None = None

    def __post_init__(self) -> None:
        self.workspace = Location(
            self.experiment.workspace, self.experiment.compute.storage_options
        )
        self.notes = notes_folder(self.workspace, self.experiment.name)
        self.store = ArtifactStore(self.workspace, verify_hashes=self.verify)
        self.nodes = dag(self.experiment)
        self.outcomes: dict[str, Outcome] = {}
        self.started = time.time()
        self._cluster = Cluster(self.experiment.compute)
        self._context = Context(
            experiment=self.experiment,
            progress=self.progress,
            stop=threading.Event(),
            log=logging.getLogger("modelmill"),
            cluster=self._cluster,
        )

    @property
    def wanted(self) -> tuple[StageName, ...]:
        """The stages up to and including `until`."""
        return STAGES[: STAGES.index(self.until) + 1]

    def expectations(self) -> dict[StageName, Expectation]:
        """For each wanted stage whether its artifact is there, and if not why; changes nothing."""
        found: dict[StageName, Expectation] = {}
        for name in self.wanted:
            node = self.nodes[name]
            inputs = {need: found[need].fingerprint for need in node.needs}
            found[name] = expect(node.stage, node.spec, inputs, self.store)
        return found

    def at_once(self) -> RunResult | None:
        """The result, if it can be given without Prefect: everything is there already.

        None also where a server is named, since whoever looks there wants to see the run, where a
        killed run left something behind that only Prefect can clean up, and where storage fails.
        """
        if os.environ.get("PREFECT_API_URL"):
            return None
        if any(note is None or note.is_due for _, note in left_behind(self.notes)):
            return None
        try:
            return self.reused()
        except ResourceError:
            # The flow looks again, and tries again what may pass.
            return None

    def reused(self) -> RunResult | None:
        """The result, if every wanted artifact is there already and true; otherwise None."""
        began = time.time()
        found: dict[StageName, Artifact] = {}
        for name, expectation in self.expectations().items():
            artifact, node = expectation.artifact, self.nodes[name]
            if artifact is None or not is_proven(node.stage, node.spec, artifact):
                return None
            found[name] = artifact
        seconds = (time.time() - began) / len(found)
        for name, artifact in found.items():
            self.outcomes[name] = Outcome(name, artifact, "reused", seconds, artifact.result)
        return self.finish("completed")

    def stage(self, name: StageName) -> Outcome:
        """Makes sure that a stage's artifact is there and notes what it took.

        Raises:
            ModelmillError: The stage failed for a reason that the user can mend.
        """
        if not self.outcomes:
            self._check_training()
        node = self.nodes[name]
        inputs = {need: self.outcomes[need].artifact for need in node.needs}
        outcome = materialise(node.stage, node.spec, inputs, self.store, self._context)
        self.outcomes[name] = outcome
        self.progress.update(name, 1, 1, outcome.action)
        self.record("running")
        return outcome

    def _check_training(self) -> None:
        """Refuses a training that can't be before prepare works for it in vain.

        Raises:
            ConfigError: The new model's architecture, or one of its values, doesn't exist.
            ResourceError: Names needed and available CPUs.
        """
        training = self.expectations().get("train")
        if training is None or training.action == "reuse":
            return
        check_before_start(self.experiment.compute)
        if self.experiment.model.scratch is not None:
            check_architecture(self.experiment.model.scratch)

    def record(self, status: str, error: ModelmillError | None = None) -> None:
        """Writes the record of the run as it stands; a failure to do so is only a warning."""
        record = RunRecord(
            run_id=self.run_id,
            name=self.experiment.name,
            status=status,
            started=self.started,
            updated=time.time(),
            flow_run_id=self.flow_run_id,
            until=self.until,
            config=plain_value(self.experiment),
            stages={name: StageRecord.of(outcome) for name, outcome in self.outcomes.items()},
            error=error.as_dict() if error else None,
        )
        try:
            record.save(self.workspace)
        except ResourceError as failure:
            self._context.log.warning("the record of the run isn't written: %s", failure)

    def finish(
        self, status: Literal["completed", "failed"], error: ModelmillError | None = None
    ) -> RunResult:
        """Writes the last record and gives the result."""
        self.record(status, error)
        return self.result(status, error)

    def result(
        self, status: Literal["completed", "failed"], error: ModelmillError | None = None
    ) -> RunResult:
        """What it came to so far."""
        return RunResult(self.run_id, self.workspace.uri, status, dict(self.outcomes), error)

    def close(self) -> None:
        """Ends the Ray that was started for the run."""
        self._cluster.close()


@contextlib.contextmanager
def recorded(run: Run) -> Generator[None]:
    """Notes that a run begins and how it ends, if not well; lets go of its Ray in any case."""
    run.record("running")
    try:
        yield
    except ModelmillError as error:
        run.finish("failed", error)
        raise
    except Exception:
        run.record("failed")
        raise
    except BaseException:
        run.record("stopped")
        raise
    finally:
        run.close()
