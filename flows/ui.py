"""What Prefect's pages show of a run: its name, the data report, the scores."""

from __future__ import annotations

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.runtime import flow_run

from tasks.stage import Outcome


def flow_run_name() -> str:
    """`<experiment>` for a config given as content, or the config's file name."""
    config = flow_run.parameters.get("config", "finetune")
    if isinstance(config, dict):
        return str(config.get("name", "finetune"))
    return str(config).rsplit("/", 1)[-1].removesuffix(".yaml")


def publish_data_report(prepared: Outcome) -> Outcome:
    """Shows the data report as a Markdown artifact; gives back what it got."""
    create_markdown_artifact(
        prepared.artifact.read_bytes("report.md").decode(),
        key="data-report",
        description=f"Data of {prepared.artifact.uri}",
    )
    return prepared


def publish_scores(scored: Outcome) -> Outcome:
    """Shows the scores of base and trained model as a table artifact; gives back what it got."""
    scores = scored.result["scores"]
    table = [
        {"model": name, **{key: _shown(value) for key, value in figures.items()}}
        for name, figures in scores.items()
    ]
    create_table_artifact(table, key="scores", description=f"Scores of {scored.artifact.uri}")
    return scored


def _shown(value: object) -> object:
    return round(value, 6) if isinstance(value, float) else value
