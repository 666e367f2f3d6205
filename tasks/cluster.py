"""The Ray that a run works on: started for the run, or a running cluster it attaches to.

Ray is started at most once a run, and only when a stage must compute. Resources are checked before
work is handed over, because Ray waits for ever for what a cluster doesn't have.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Generator
from typing import Any
from unittest import mock

from configs.compute import ComputeConfig
from configs.errors import ResourceError
from tasks.errors import first_line, ray_errors

_ANSWER_SECONDS = 5.0
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",
}


class Cluster:
    """One connection to Ray, made when it is first needed.

    Args:
        compute: Where and with what the run works.
    """

    def __init__(self, compute: ComputeConfig) -> None:
        self._compute = compute
        self._connected = False

    def connect(self) -> None:
        """Starts Ray or attaches to the running cluster; again only if the connection was lost.

        Raises:
            ResourceError: The cluster at `compute.address` doesn't answer, or Ray doesn't start.
        """
        if self._connected:
            if _answers():
                return
            self.close()
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        import ray

        # It warns of the token that Ray makes for every new cluster, on every start.
        logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
        with _signal_handlers_kept(), _own_session():
            try:
                ray.init(**self._init_arguments())
            except Exception as error:
                # Ray raises a bare Exception where its own processes don't start in time.
                raise self._not_there(error) from error
        self._connected = True

    def _not_there(self, error: Exception) -> ResourceError:
        hint = "`ray status --address ...` must answer; null starts Ray for the run"
        if self._compute.address is None:
            hint = "the machine may be overloaded or short of memory: run the same command again"
        return ResourceError(
            f"Ray can't be reached or started: {first_line(error)}",
            where="compute.address",
            hint=hint,
            code="ray_unreachable",
        )

    def _init_arguments(self) -> dict[str, Any]:
        common = {"log_to_driver": False, "logging_level": logging.WARNING}
        if self._compute.address is not None:
            return {"address": self._compute.address, **common}
        return {
            "address": "local",
            "num_cpus": self._compute.num_cpus,
            "include_dashboard": False,
            "object_store_memory": self._compute.object_store_bytes,
            **common,
        }

    @property
    @ray_errors()
    def num_cpus(self) -> int:
        """CPUs of the whole cluster; `connect()` first."""
        import ray

        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    @ray_errors()
    def use_gpu(self) -> bool:
        """Whether training runs on GPUs, with `compute.use_gpu: auto` decided."""
        if self._compute.use_gpu != "auto":
            return self._compute.use_gpu
        import ray

        return ray.cluster_resources().get("GPU", 0) >= self._compute.num_workers

    @ray_errors()
    def check_training(self) -> None:
        """Refuses a placement of the training workers that can never be met.

        Raises:
            ResourceError: Names needed and available resources.
        """
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        demand = dict(self._compute.resources_per_worker)
        if self.use_gpu():
            demand.setdefault("GPU", 1.0)
        check_placement(demand, self._compute.num_workers, nodes)

    def close(self) -> None:
        """Ends a Ray that was started for the run, or leaves the cluster; its workers go."""
        if not self._connected:
            return
        import ray

        self._connected = False
        with _signal_handlers_kept():
            ray.shutdown()


def _answers() -> bool:
    """Whether the Ray that this process is connected to lives: its GCS and the node's raylet."""
    import ray
    from ray.exceptions import RayError

    if not ray.is_initialized():
        return False
    own = ray.get_runtime_context()
    # First without Ray, whose calls wait long for a GCS that is gone, and end the process then.
    if not _listens(*own.gcs_address.rsplit(":", 1)):
        return False
    try:
        nodes = [node for node in ray.nodes() if node["NodeID"] == own.get_node_id()]
    except RayError:
        return False
    return any(
        node["Alive"] and _listens(node["NodeManagerAddress"], node["NodeManagerPort"])
        for node in nodes
    )


def _listens(host: str, port: str | int) -> bool:
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS):
            return True
    except OSError:
        return False


def check_before_start(compute: ComputeConfig) -> None:
    """The part of the check that needs no Ray: a laptop asked for more CPUs than it has.

    Raises:
        ResourceError: Names needed and available CPUs.
    """
    if compute.address is None:
        available = float(compute.num_cpus or _machine_cpus())
        check_placement(
            {"CPU": compute.resources_per_worker.get("CPU", 1.0)},
            compute.num_workers,
            [{"CPU": available}],
        )


def check_placement(
    demand: dict[str, float], num_workers: int, nodes: list[dict[str, float]]
) -> None:
    """Whether `num_workers` bundles fit onto the nodes, each bundle on one node.

    Args:
        demand: Resources of one worker.
        num_workers: Workers to place.
        nodes: Total resources of each node.

    Raises:
        ResourceError: They don't; names what is short and how many workers would fit.
    """
    wanted = {name: amount for name, amount in demand.items() if amount > 0}
    fitting = sum(_bundles_on(node, wanted, num_workers) for node in nodes)
    if fitting >= num_workers:
        return
    needed = ", ".join(f"{amount * num_workers:g} {name}" for name, amount in wanted.items())
    total = ", ".join(f"{sum(n.get(name, 0.0) for n in nodes):g} {name}" for name in wanted)
    raise ResourceError(
        f"{num_workers} workers need {needed}; there are {total} on {len(nodes)} node(s)",
        where="compute.num_workers",
        hint=f"num_workers={fitting} fits"
        if fitting
        else "no worker fits: lower compute.resources_per_worker",
        code="too_few_resources",
    )


def _bundles_on(node: dict[str, float], demand: dict[str, float], most: int) -> int:
    counts = [math.floor(node.get(name, 0.0) / amount + 1e-9) for name, amount in demand.items()]
    return min([most, *counts])


def _machine_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def _own_session() -> Generator[None]:
    """Ray's processes, out of reach of what is sent to the run's process group.

    Those that die under a driver which still uses them can take it along, by a segmentation fault.
    The driver ends them itself; where it is killed, the kernel does (`PR_SET_PDEATHSIG`).
    """
    from ray._private import services

    popen = functools.partial(services.ConsolePopen, start_new_session=True)
    with mock.patch.object(services, "ConsolePopen", popen):
        yield


@contextlib.contextmanager
def _signal_handlers_kept() -> Generator[None]:
    """Ray replaces the handlers of SIGTERM and SIGINT; a cancelled run must reach ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
