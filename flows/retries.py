"""Which failures of a stage are tried again: those that may pass, and no others."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State
from prefect.tasks import exponential_backoff

from configs.errors import ModelmillError, ResourceError

BACKOFF: dict[str, Any] = {
    "retries": 3,
    "retry_delay_seconds": exponential_backoff(backoff_factor=5),
    "retry_jitter_factor": 0.5,
}

PASSING = frozenset({"storage_failed", "hub_unreachable", "worker_lost", "workers_lost"})
"""Codes of a `ResourceError` that waiting may mend."""


def may_pass(task: Any, task_run: Any, state: State[Any]) -> bool:
    """Whether a failed stage is worth another try: lost storage or a lost node, but not bad input.

    Args:
        task: The Prefect task; not looked at.
        task_run: Its run; not looked at.
        state: The state that holds the exception.
    """
    error = state.result(raise_on_failure=False)
    if isinstance(error, ResourceError):
        return error.code in PASSING
    if isinstance(error, ModelmillError):
        return False
    return isinstance(error, (ConnectionError, TimeoutError))
