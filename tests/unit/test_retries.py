import pytest
from prefect import Task
from prefect.states import Failed

from configs.errors import ConfigError, DataError, ModelmillError, ResourceError
from flows import finetune
from flows.retries import may_pass
from flows.run import STAGES


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ConfigError("x"), False),
        (DataError("x"), False),
        (ModelmillError("x"), False),
        (ResourceError("x", code="too_few_resources"), False),
        (ResourceError("x", code="no_space"), False),
        (ResourceError("x", code="no_permission"), False),
        (ResourceError("x", code="storage_failed"), True),
        (ResourceError("x", code="hub_unreachable"), True),
        (ResourceError("x", code="worker_lost"), True),
        (ResourceError("x", code="workers_lost"), True),
        (ConnectionResetError("x"), True),
        (AssertionError("a bug"), False),
    ],
)
def test_only_what_may_pass_is_tried_again(error: Exception, again: bool) -> None:
    assert may_pass(None, None, Failed(data=error)) is again


def test_every_stage_is_tried_again_with_backoff_and_jitter() -> None:
    tasks = [value for value in vars(finetune).values() if isinstance(value, Task)]
    assert [task.name for task in tasks] == list(STAGES)
    for task in tasks:
        assert task.retries == 3
        assert task.retry_delay_seconds == [5, 10, 20]
        assert task.retry_jitter_factor == 0.5
        assert task.retry_condition_fn is may_pass
