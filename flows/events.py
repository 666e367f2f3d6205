"""Events that start deployments: `modelmill.data.changed` makes `on-new-data` run an experiment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.errors import ConfigError, ResourceError
from flows.loading import load

EVENTS = ("data.changed",)


def emit_event_for(event: str, config: str, overrides: Sequence[str] = ()) -> str:
    """Sends an event about an experiment to the Prefect server and waits until it has it.

    Args:
        event: `data.changed`.
        config: Path of the config file, as the worker that will run it sees it.
        overrides: Dotted `KEY=VALUE` changes, part of the payload.

    Returns:
        The event's full name and resource.

    Raises:
        ConfigError: There is no such event, or the config is wrong.
        ResourceError: No server is named, or it doesn't answer.
    """
    if event not in EVENTS:
        raise ConfigError(
            f"there is no event {event!r}",
            where="EVENT",
            hint=f"one of {', '.join(EVENTS)}",
            code="unknown_event",
        )
    experiment = load(config, overrides)
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        raise ResourceError(
            "events need a Prefect server",
            where="PREFECT_API_URL",
            hint="export PREFECT_API_URL=http://127.0.0.1:4200/api (and `prefect server start`)",
            code="no_prefect_server",
        )
    path = Path(config)
    payload: dict[str, Any] = {
        "config": str(path.resolve()) if path.exists() else config,
        "overrides": list(overrides),
    }
    resource = f"modelmill.experiment.{experiment.name}"
    from flows.prefect_api import check_server

    check_server(url)
    asyncio.run(_send(f"modelmill.{event}", resource, payload))
    return f"modelmill.{event} for {resource}"


async def _send(name: str, resource: str, payload: dict[str, Any]) -> None:
    from prefect.events import Event, Resource
    from prefect.events.clients import get_events_client

    event = Event(event=name, resource=Resource({"prefect.resource.id": resource}), payload=payload)
    async with get_events_client() as client:
        await client.emit(event)
