"""What the driver does when parts of Ray are lost: a passing error, and a retry that ends well."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray
from tiny_training import LONG, OnStep, context, experiment, training_workers, write_prepared

from configs.compute import ComputeConfig
from configs.errors import ResourceError
from configs.experiment import Experiment
from flows.retries import PASSING
from tasks.artifacts import Artifact, ArtifactStore
from tasks.base_model import resolve_base
from tasks.cluster import Cluster
from tasks.stage import NoProgress, Outcome, Progress, materialise
from tasks.storage import Location
from tasks.train.stage import TrainStage, train_spec


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(ComputeConfig(num_cpus=2))
    yield made
    made.close()


@pytest.fixture
def prepared(tmp_path: Path) -> Artifact:
    return write_prepared(tmp_path, tmp_path / "data")


def train(
    config: Experiment, prepared: Artifact, cluster: Cluster, progress: Progress | None = None
) -> Outcome:
    here = context(config, progress or NoProgress())
    here.cluster = cluster
    store = ArtifactStore(Location(config.workspace))
    spec = train_spec(config, resolve_base(config.model))
    return materialise(TrainStage(), spec, {"prepare": prepared}, store, here)


def kill_own(name: str) -> None:
    """Kill -9 of the processes of that name below this one."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if name in (child.name(), child.cmdline()[0].strip()):
                child.kill()
                found.append(child)
    assert found
    psutil.wait_procs(found, timeout=30)


def test_a_lost_monitor_can_be_retried(
    prepared: Artifact, tmp_path: Path, cluster: Cluster
) -> None:
    """The actor that watches over the workers falls with its node."""
    config = experiment(tmp_path, **LONG)
    workers: list[psutil.Process] = []

    def lose_monitor() -> None:
        workers.extend(training_workers())
        kill_own("ray::Monitor")

    with pytest.raises(ResourceError) as caught:
        train(config, prepared, cluster, OnStep(30, lose_monitor))

    assert caught.value.code == "worker_lost"
    assert caught.value.code in PASSING
    assert caught.value.where == "compute.address"
    assert len(workers) == 1
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive, "workers of the lost run go on"
    again = train(config, prepared, cluster)
    assert again.action == "resumed"
    assert again.result["steps"] == 120


@pytest.mark.parametrize("process", ["raylet", "gcs_server"])
def test_a_dead_local_ray_is_started_again(cluster: Cluster, process: str) -> None:
    cluster.connect()
    first = ray.get_runtime_context().gcs_address
    cluster.connect()
    assert ray.get_runtime_context().gcs_address == first

    kill_own(process)
    cluster.connect()

    assert ray.get_runtime_context().gcs_address != first
    assert cluster.num_cpus == 2
    cluster.check_training()


def test_a_ray_that_was_shut_down_is_started_again(cluster: Cluster) -> None:
    cluster.connect()
    ray.shutdown()
    cluster.connect()
    assert cluster.num_cpus == 2
