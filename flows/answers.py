"""How a command answers: its object or its lines, its errors, its exit code."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Generator
from typing import Any

import typer
from pydantic import ValidationError

from configs.errors import ConfigError, ModelmillError
from flows import terminal


class Terminated(KeyboardInterrupt):
    """SIGTERM, as an exception that unwinds as Ctrl-C does."""


@contextlib.contextmanager
def answering(*, as_json: bool, debug: bool) -> Generator[dict[str, Any]]:
    """Collects the answer and prints it as one object; errors become the exit code.

    With `as_json`, file descriptor 1 points to stderr meanwhile, so that nothing that a library or
    a child process prints can get between a program and the object.
    """
    answer: dict[str, Any] = {}
    code = 0
    with _stdout_kept(as_json) as out:
        try:
            yield answer
        except ModelmillError as error:
            code = error.exit_code
            note_failure(answer, error.as_dict())
            if debug:
                traceback.print_exc()
            terminal.show_error(error)
        except Exception as bug:
            code = 1
            note_failure(
                answer, {"code": "internal_error", "where": "", "rule": repr(bug), "hint": ""}
            )
            traceback.print_exc()
        except KeyboardInterrupt as stopped:
            code = 143 if isinstance(stopped, Terminated) else 130
            hint = "the same command goes on from here"
            note_failure(answer, {"code": "stopped", "where": "", "rule": "stopped", "hint": hint})
            terminal.show_stopped()
        if as_json:
            os.write(out, json.dumps(answer, indent=2).encode() + b"\n")
    if code:
        raise typer.Exit(code)


def note_failure(answer: dict[str, Any], error: dict[str, Any]) -> None:
    """Makes the answer that of a failure."""
    answer.update({"status": "failed", "error": error})
    answer.setdefault("run_id", None)
    answer.setdefault("stages", {})


@contextlib.contextmanager
def _stdout_kept(redirect: bool) -> Generator[int]:
    if not redirect:
        yield 1
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield kept
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def prefect_settings() -> Generator[None]:
    """Around what reads Prefect's settings, which come from the environment and its profiles.

    Raises:
        ConfigError: One of them is wrong.
    """
    try:
        yield
    except ValidationError as error:
        if not error.title.endswith("Settings"):
            raise
        wrong = error.errors()[0]
        raise ConfigError(
            f"Prefect's settings are wrong: {wrong['msg']}",
            where=".".join([f"Prefect's {error.title}", *map(str, wrong["loc"])]),
            hint="look at the PREFECT_ variables and at `prefect config view`",
            code="bad_prefect_settings",
        ) from error


def settle_logs(debug: bool) -> None:
    """Keeps Prefect and the libraries from talking over the progress; their own settings win."""
    if not debug:
        # Prefect logs the traceback of every failure; ours are told by `show_error`.
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if not os.environ.get("PREFECT_API_URL"):
        os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
