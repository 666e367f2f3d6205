"""The command line. Every command is a few lines around a plain Python call.

Exit codes: 0 done; 2 the config is wrong; 3 the data is wrong; 4 the machine or the cluster can't
do it; 130 or 143 stopped by a signal; 1 anything else.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from configs.errors import ConfigError, ModelmillError
from flows import terminal
from flows.answers import Terminated, answering, note_failure, prefect_settings, settle_logs
from flows.run import STAGES, Run, RunResult, StageName
from tasks.storage import Location

app = typer.Typer(
    name="modelmill",
    help="Raw text data in, a better language model out, and nothing lost on the way.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


ConfigArgument = Annotated[str, typer.Argument(help="Config file, or the name of a preset.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Changes to it: dotted KEY=VALUE.", metavar="KEY=VALUE")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Until = Annotated[str, typer.Option(help="Last stage: prepare, train, evaluate or export.")]
Debug = Annotated[bool, typer.Option(help="Show tracebacks and Prefect's and Ray's own logs.")]
Workspace = Annotated[str, typer.Option(help="Folder or URI that the runs are in.")]


@app.command()
def run(
    config: ConfigArgument,
    overrides: Overrides = None,
    until: Until = "export",
    verify: Annotated[
        bool, typer.Option(help="Check the hash of every file of an artifact before reusing it.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run what is missing, reuse what is there, resume what was cut off."""
    with answering(as_json=as_json, debug=debug) as answer:
        result = _run(config, overrides or (), answer, until=until, verify=verify, debug=debug)
        answer.update(result.as_dict())
        result.raise_for_error()
        if not as_json:
            terminal.show_summary(result)


def _run(
    config: str,
    overrides: Sequence[str],
    answer: dict[str, Any],
    *,
    until: str,
    verify: bool,
    debug: bool,
) -> RunResult:
    """Runs, and leaves in the answer how far a run came that was stopped."""
    from flows.loading import load

    with terminal.StageProgress() as progress:
        experiment = load(config, overrides)
        asked = Run(experiment, until=_stage_named(until), progress=progress, verify=verify)
        if result := asked.at_once():
            return result
        settle_logs(debug)
        try:
            with prefect_settings():
                from flows.finetune import execute

                return execute(asked)
        except BaseException:
            answer.update(asked.result("failed").as_dict())
            raise


def _stage_named(text: str) -> StageName:
    """The stage of that name.

    Raises:
        ConfigError: There is none.
    """
    for name in STAGES:
        if name == text:
            return name
    raise ConfigError(
        f"there is no stage {text!r}",
        where="--until",
        hint=f"one of {', '.join(STAGES)}",
        code="unknown_stage",
    )


@app.command()
def plan(
    config: ConfigArgument,
    overrides: Overrides = None,
    until: Until = "export",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say what a run would compute, reuse or resume, and why. Touches nothing."""
    from flows.loading import load
    from flows.plan import plan_of

    with answering(as_json=as_json, debug=debug) as answer:
        planned = plan_of(Run(load(config, overrides or ()), until=_stage_named(until)))
        answer.update(planned.as_dict())
        if not as_json:
            terminal.show_plan(planned)


@app.command()
def runs(
    run_id: Annotated[str | None, typer.Argument(metavar="[RUN]", help="One run.")] = None,
    workspace: Workspace = "runs",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the runs of a workspace, or show one run's stages, metrics and lineage."""
    from dataclasses import asdict

    from flows.records import find_run, list_runs

    with answering(as_json=as_json, debug=debug) as answer:
        place = Location(workspace)
        if run_id is None:
            records = list_runs(place)
            answer["runs"] = [asdict(record) for record in records]
            if not as_json:
                terminal.show_runs(records, workspace)
        else:
            record = find_run(place, run_id)
            answer.update(asdict(record))
            if not as_json:
                terminal.show_run(record)


@app.command()
def predict(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_RUN", help="Model folder or its URI, run id or experiment name."
        ),
    ],
    text: Annotated[str, typer.Argument(help="What to ask.")],
    workspace: Workspace = "runs",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer (tokens).")] = 256,
    debug: Debug = False,
) -> None:
    """Answer from an exported model, through its own chat template."""
    with answering(as_json=False, debug=debug):
        settle_logs(debug)
        from tasks.predict import answer

        folder = _model_folder(model, workspace)
        typer.echo(answer(folder, text, max_new_tokens=max_new_tokens))


def _model_folder(model: str, workspace: str) -> Path:
    from configs.model import ModelConfig
    from flows.records import artifact_of_run
    from tasks.base_model import local_base, resolve_base

    if Path(model).exists():
        return Path(model)
    if "://" in model:
        return local_base(resolve_base(ModelConfig(base=model)))
    record, found = artifact_of_run(Location(workspace), model, "export")
    if found is None:
        raise ModelmillError(
            "this run has no exported model",
            where=record.run_id,
            hint=f"it is {record.status}; `modelmill run` again exports it",
            code="not_exported",
        )
    return found.local_dir("model")


@app.command()
def preview(
    target: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG_OR_RUN",
            help="Config file or preset; with --row a run or its name.",
        ),
    ],
    overrides: Overrides = None,
    count: Annotated[int, typer.Option("-n", min=1, help="Rows of each source.")] = 5,
    row: Annotated[
        int | None, typer.Option(min=0, help="A run's prepared sequence of this number instead.")
    ] = None,
    held_out: Annotated[bool, typer.Option(help="With --row: of the held-out side.")] = False,
    columns: Annotated[bool, typer.Option(help="The columns of each source instead.")] = False,
    workspace: Workspace = "runs",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show rows as they become tokens: what is trained, what is context, where they come from."""
    from flows import preview as shown

    with answering(as_json=as_json, debug=debug) as answer:
        if row is not None:
            rows = shown.prepared(target, row, held_out=held_out, workspace=Location(workspace))
        elif columns:
            answer["sources"] = shown.columns(target, overrides or (), show=not as_json)
            return
        else:
            rows = shown.rows(target, overrides or (), count)
        answer["rows"] = shown.show(rows, printed=not as_json)


@app.command()
def schema() -> None:
    """Print the JSON schema of a config file, for editors."""
    from configs.loading import experiment_schema

    typer.echo(json.dumps(experiment_schema(), indent=2))


@app.command()
def emit(
    event: Annotated[str, typer.Argument(help="Event to send: data.changed.")],
    config: ConfigArgument,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Tell the Prefect server that data changed, which starts the on-new-data deployment."""
    with answering(as_json=False, debug=debug), prefect_settings():
        from flows.events import emit_event_for

        sent = emit_event_for(event, config, overrides or ())
        typer.echo(f"sent {sent}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `modelmill`."""
    signal.signal(signal.SIGTERM, _terminate)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=given)
    except SystemExit as ended:
        # Typer has told the terminal what is wrong with the command; a program wants its object.
        usage: Any = ended.__context__
        if "--json" in given and hasattr(usage, "format_message"):
            command = usage.ctx.command_path if usage.ctx else "modelmill"
            hint = f"see {command} --help"
            answer: dict[str, Any] = {}
            rule = usage.format_message()
            note_failure(answer, {"code": "usage", "where": command, "rule": rule, "hint": hint})
            typer.echo(json.dumps(answer, indent=2))
        raise


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """During a flow Prefect has a handler of its own, and calls this one when it has cleaned up."""
    raise Terminated


if __name__ == "__main__":
    main()
