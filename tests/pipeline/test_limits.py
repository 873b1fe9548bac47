"""A run ends when too much has failed, and says what."""

from __future__ import annotations

import pytest

from lancer.config import LimitsConfig
from lancer.errors import LimitError
from lancer.pipeline.limits import check_limits
from lancer.pipeline.summary import RunResult, StageTotal

LIMITS = LimitsConfig(failed_queries=0.1, failed_cells=0.1)


def result(total: StageTotal, queries: int = 100) -> RunResult:
    return RunResult("out", queries, stages=[StageTotal("retrieve", queries=total.queries), total])


def test_a_share_of_all_queries_may_fail() -> None:
    total = StageTotal("decompose", queries=12, failed_queries=10, failures={"engine_error": 7, "poison": 3})
    check_limits(LIMITS, result(total))
    total.failed_queries = 11
    total.failures = {"engine_error": 4, "poison": 7}
    with pytest.raises(LimitError) as caught:
        check_limits(LIMITS, result(total))
    message = str(caught.value)
    assert "stage 'decompose': 11 of 100 queries failed, more than limits.failed_queries 0.1" in message
    assert "(poison 7, engine_error 4)" in message, "counts by reason, the most frequent first"
    assert "--retry-failed" in message
    assert caught.value.exit_code == 7


def test_a_share_of_the_cells_so_far_may_fail() -> None:
    total = StageTotal("judge", queries=50, cells=5000, failed_cells=500, failures={"unreadable": 40})
    check_limits(LIMITS, result(total))
    total.failed_cells = 501
    with pytest.raises(LimitError, match=r"501 of 5,000 cells failed, more than limits\.failed_cells 0\.1"):
        check_limits(LIMITS, result(total))


def test_the_first_bad_shard_of_a_long_run_does_not_end_it() -> None:
    total = StageTotal("judge", queries=9, cells=900, failed_cells=900, failures={"error": 9})
    check_limits(LIMITS, result(total))
    total.queries = 10
    with pytest.raises(LimitError):
        check_limits(LIMITS, result(total))


def test_nothing_may_fail_where_the_limit_is_zero_and_everything_where_it_is_one() -> None:
    total = StageTotal("judge", queries=100, failed_queries=1, cells=10, failed_cells=10)
    check_limits(LimitsConfig(failed_queries=1, failed_cells=1), result(total))
    with pytest.raises(LimitError):
        check_limits(LimitsConfig(failed_queries=0, failed_cells=1), result(total))
    with pytest.raises(LimitError):
        check_limits(LimitsConfig(failed_queries=1, failed_cells=0), result(total))
