"""What training workers wait for on a busy cluster."""

from __future__ import annotations

from tasks.train.launch import shortage


def test_busy_cluster_says_what_is_short() -> None:
    demand = {"CPU": 1.0, "GPU": 1.0}
    assert shortage(demand, 2, {"GPU": 2.0}) == "waiting for 2 CPU; 0 CPU are free"
    assert (
        shortage(demand, 2, {"CPU": 0.5, "GPU": 1.0})
        == "waiting for 2 CPU, 2 GPU; 0.5 CPU, 1 GPU are free"
    )


def test_nothing_is_short_where_all_fit() -> None:
    assert shortage({"CPU": 0.5, "custom": 0.0}, 2, {"CPU": 1.0}) == ""
