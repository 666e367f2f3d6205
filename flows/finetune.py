"""The whole pipeline as a Prefect flow: prepare → train → evaluate → export.

    python -m flows.finetune configs/presets/quickstart.yaml train.learning_rate=1e-3

Each stage writes an artifact below the workspace, named by a fingerprint of everything that decides
it. A stage whose artifact is there is reused; one that was killed goes on where it stopped. Prefect
adds retries, states and pages to look at; the truth about completion is in the manifests alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from configs.document import plain_value
from configs.errors import ModelmillError, ResourceError
from flows import ui
from flows.janitor import start_api, watched
from flows.loading import Config, load, with_objects
from flows.retries import BACKOFF, may_pass
from flows.run import Run, RunResult, StageName, recorded
from tasks.stage import NoProgress, Outcome, Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_RUN_IN_HAND: ContextVar[Run | None] = ContextVar("run_in_hand", default=None)

STAGE: dict[str, Any] = {
    "cache_policy": NO_CACHE,
    "persist_result": False,
    "retry_condition_fn": may_pass,
    **BACKOFF,
}


@task(name="prepare", **STAGE)
def prepare(run: Run) -> Outcome:
    """Source rows → token shards with exact loss masks, plan and report."""
    return ui.publish_data_report(run.stage("prepare"))


@task(name="train", **STAGE)
def train(run: Run, prepared: Outcome) -> Outcome:
    """Token shards → weights, on Ray Train workers."""
    return run.stage("train")


@task(name="evaluate", **STAGE)
def evaluate(run: Run, prepared: Outcome, trained: Outcome) -> Outcome:
    """Weights and held-out rows → scores of base and trained model."""
    return ui.publish_scores(run.stage("evaluate"))


@task(name="export", **STAGE)
def export(run: Run, prepared: Outcome, trained: Outcome, scored: Outcome) -> Outcome:
    """Weights → a Hugging Face folder, proven by loading it again."""
    return run.stage("export")


def stages(run: Run) -> None:
    """The DAG: each stage reads the artifacts of the ones it names."""
    prepared = prepare(run)
    if run.until == "prepare":
        return
    trained = train(run, prepared)
    if run.until == "train":
        return
    scored = evaluate(run, prepared, trained)
    if run.until == "evaluate":
        return
    export(run, prepared, trained, scored)


@flow(name="finetune", flow_run_name=ui.flow_run_name)
def pipeline(
    config: str | dict[str, Any],
    overrides: list[str] | None = None,
    until: StageName = "export",
) -> RunResult:
    """The flow that deployments run; parameters are JSON.

    Args:
        config: Path of a config file, or its content.
        overrides: Dotted `KEY=VALUE` changes to it.
        until: The last stage to run.

    Raises:
        ModelmillError: A stage failed for a reason that the user can mend.
    """
    run = _RUN_IN_HAND.get() or Run(load(config, overrides or ()), until=until)
    run.flow_run_id = flow_run.id
    with watched(run), recorded(run):
        stages(run)
        return run.finish("completed")


def finetune(
    config: Config,
    overrides: Sequence[str] = (),
    *,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    until: StageName = "export",
    progress: Progress | None = None,
    verify: bool = False,
) -> RunResult:
    """Runs what is missing of an experiment, reuses what is there, resumes what was cut off.

    Args:
        config: An `Experiment`, its content as a dict, or the path of a config file.
        overrides: Dotted `KEY=VALUE` changes to it.
        model: A model to start from instead of the config's; its weights' hash is the identity.
        tokenizer: A tokenizer with a chat template instead of the config's; likewise.
        until: The last stage to run.
        progress: Is told how far each stage is.
        verify: Check the hash of every file of an artifact before it is reused.

    Returns:
        Stages, metrics, checkpoint and path; where a stage failed for a reason that the user can
        mend, `status` is `failed` and `error` says why.

    Raises:
        ConfigError: The config is wrong; nothing was run.
        DataError: A source isn't there; nothing was run.
    """
    experiment = with_objects(load(config, overrides), model=model, tokenizer=tokenizer)
    run = Run(experiment, until=until, progress=progress or NoProgress(), verify=verify)
    return run.at_once() or execute(run)


def execute(run: Run) -> RunResult:
    """Takes a run through Prefect: the server at PREFECT_API_URL, or a temporary API."""
    try:
        start_api(run)
    except ResourceError as error:
        return run.finish("failed", error)
    in_hand = _RUN_IN_HAND.set(run)
    try:
        return pipeline(plain_value(run.experiment), until=run.until)
    except ModelmillError as error:
        return run.result("failed", error)
    finally:
        _RUN_IN_HAND.reset(in_hand)


if __name__ == "__main__":
    from flows.cli import main

    main(["run", *sys.argv[1:]])
