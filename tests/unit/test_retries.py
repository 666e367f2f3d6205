import pytest
from prefect.states import Failed

from configs.errors import ConfigError, DataError, ModelmillError, ResourceError
from flows.retries import may_pass


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
        (ResourceError("x", code="workers_lost"), True),
        (ConnectionResetError("x"), True),
        (AssertionError("a bug"), False),
    ],
)
def test_only_what_may_pass_is_tried_again(error: Exception, again: bool) -> None:
    assert may_pass(None, None, Failed(data=error)) is again
