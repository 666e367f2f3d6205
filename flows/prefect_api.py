"""The Prefect API that a run talks to, and the one place that asks whether it answers."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from prefect.client.base import ServerType
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_KEY,
    PREFECT_CLIENT_MAX_RETRIES,
    get_current_settings,
    temporary_settings,
)

from configs.errors import ResourceError
from tasks.errors import first_line

ANSWER_SECONDS = 20.0
"""Time that the server that is named may take to answer; a busy one takes seconds."""


def api_url() -> str | None:
    """URL of the Prefect server that is named; None: runs use a temporary API."""
    return get_current_settings().api.url


def check_server(url: str) -> None:
    """Refuses a Prefect server that can't be used before anything is handed to it.

    Args:
        url: URL of its API.

    Raises:
        ResourceError: It doesn't answer, or not as Prefect's API does (`no_prefect_server`).
    """
    problem = problem_with(url, seconds=ANSWER_SECONDS)
    if problem is not None:
        raise ResourceError(
            f"the Prefect server can't be used: {first_line(problem)}",
            where=url,
            hint="start it with `prefect server start`, or unset PREFECT_API_URL; "
            "the URL of an API ends in /api: http://127.0.0.1:4200/api",
            code="no_prefect_server",
        ) from problem


def problem_with(url: str, *, seconds: float) -> Exception | None:
    """Why the Prefect API at a URL can't be used; None if it can.

    Args:
        url: URL of the API.
        seconds: Longest wait for a connection, and for the answer.
    """
    try:
        with client_for(url, seconds=seconds) as client:
            answer = client.request("GET", "/health").content
            # A server's web pages answer at any path; whether Cloud says the same isn't documented.
            if client.server_type == ServerType.SERVER and answer.strip() != b"true":
                raise ValueError("what answers there isn't Prefect's API")
    except PrefectHTTPStatusError as error:
        answer = error.response
        return ValueError(f"{answer.url} answers {answer.status_code} {answer.reason_phrase}")
    # A wrong name, port, certificate, path or answer has an exception of its own each.
    except Exception as error:
        return error
    return None


@contextlib.contextmanager
def client_for(url: str, *, seconds: float) -> Generator[SyncPrefectClient]:
    """A client of the Prefect API at a URL that asks once, where Prefect's own tries for minutes.

    Prefect's credentials belong to the server that is named, and go to no other one.
    """
    trusted = api_url() in (None, url)
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        SyncPrefectClient(
            url,
            auth_string=PREFECT_API_AUTH_STRING.value() if trusted else None,
            api_key=PREFECT_API_KEY.value() if trusted else None,
            httpx_settings={"timeout": seconds},
        ) as client,
    ):
        yield client
