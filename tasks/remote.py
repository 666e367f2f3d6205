"""Work on Ray actors that a stop request ends at once."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from configs.compute import ComputeConfig
from configs.errors import ModelmillError, ResourceError
from tasks.errors import ray_errors

ItemT = TypeVar("ItemT")

_POLL_SECONDS = 0.2


def threads_of(compute: ComputeConfig) -> int:
    """CPU threads of one worker: what the config says, else its CPUs, at least 1."""
    return compute.threads_per_worker or max(1, int(compute.resources_per_worker.get("CPU", 1.0)))


def start_actors(
    kind: type, count: int, *, compute: ComputeConfig, gpu: bool, arguments: tuple[Any, ...]
) -> list[Any]:
    """Start actors of a class, each with the resources of one worker.

    An actor whose process is lost is started again and its call repeated, `compute.max_failures`
    times.

    Args:
        kind: Importable class with a method `run(item)`; a repeated call must do no harm.
        count: How many.
        compute: Resources and retries.
        gpu: Reserve a GPU for each.
        arguments: What the class is called with.
    """
    import ray

    others = {k: v for k, v in compute.resources_per_worker.items() if k not in ("CPU", "GPU")}
    gpus = compute.resources_per_worker.get("GPU", 1.0)
    actor_class: Any = ray.remote(
        num_cpus=compute.resources_per_worker.get("CPU", 1.0),
        num_gpus=gpus if gpu else 0,
        resources=others,
        max_restarts=compute.max_failures,
        max_task_retries=compute.max_failures,
    )(kind)
    return [actor_class.remote(*arguments) for _ in range(count)]


@ray_errors()
def run_on_actors(
    actors: Sequence[Any],
    items: Sequence[ItemT],
    *,
    stop: threading.Event,
    on_result: Callable[[Any], None],
) -> None:
    """Have actors work through items, and end the actors, whatever happens.

    Args:
        actors: Each works on one item at a time.
        items: Handed out in this order.
        stop: Ends the work when it is set.
        on_result: Gets what `run(item)` returned, as soon as it is there, in any order.

    Raises:
        ModelmillError: `stop` was set (`stopped`), or what an actor raised.
        ResourceError: Actors were lost more often than they may be, or Ray itself was
            (`worker_lost`).
    """
    import ray
    from ray.exceptions import RayError

    waiting = deque(items)
    running: dict[Any, Any] = {}
    try:
        for actor in actors[: len(waiting)]:
            running[actor.run.remote(waiting.popleft())] = actor
        while running:
            if stop.is_set():
                raise ModelmillError(
                    "stopped before all work was done",
                    hint="run the same command again to go on",
                    code="stopped",
                )
            done, _ = ray.wait(list(running), timeout=_POLL_SECONDS)
            for reference in done:
                actor = running.pop(reference)
                on_result(_result(reference))
                if waiting:
                    running[actor.run.remote(waiting.popleft())] = actor
    finally:
        for actor in actors:
            with contextlib.suppress(RayError):
                ray.kill(actor)


def _result(reference: Any) -> Any:
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    try:
        return ray.get(reference)
    except RayTaskError as error:
        # Ray wraps what a worker raised; a user's error must come out as itself.
        if isinstance(error.cause, ModelmillError):
            raise error.cause from error
        raise
    except RayActorError as error:
        raise ResourceError(
            f"a worker was lost again and again: {str(error).strip().splitlines()[0]}",
            where="compute.resources_per_worker",
            hint="mostly it ran out of memory: lower evaluate.batch_size or compute.num_workers",
            code="worker_lost",
        ) from error
