import pytest

from configs.compute import ComputeConfig
from configs.errors import ResourceError
from tasks.cluster import check_before_start, check_placement


def test_fits_on_two_nodes_together() -> None:
    check_placement({"CPU": 2.0}, 3, [{"CPU": 4.0}, {"CPU": 2.0}])


def test_bundle_is_not_spread_over_nodes() -> None:
    with pytest.raises(ResourceError) as caught:
        check_placement({"CPU": 3.0}, 2, [{"CPU": 4.0}, {"CPU": 2.0}])
    assert "6 CPU" in caught.value.rule
    assert caught.value.hint == "num_workers=1 fits"


def test_resource_that_no_node_has() -> None:
    with pytest.raises(ResourceError) as caught:
        check_placement({"CPU": 1.0, "GPU": 1.0}, 1, [{"CPU": 8.0}])
    assert "0 GPU" in caught.value.rule
    assert "no worker fits" in caught.value.hint


def test_half_cpus_add_up() -> None:
    check_placement({"CPU": 0.5}, 4, [{"CPU": 2.0}])


def test_more_workers_than_the_laptop_has() -> None:
    with pytest.raises(ResourceError) as caught:
        check_before_start(ComputeConfig(num_cpus=2, num_workers=3))
    assert caught.value.where == "compute.num_workers"
    assert caught.value.exit_code == 4
