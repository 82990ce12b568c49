# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.checkpoint.retention import Retention, expired


def test_order_is_by_number_not_by_name() -> None:
    """CKP-03."""
    assert expired([100, 90, 110], Retention(keep_last=2), newest_verified=110) == [90]


def test_without_a_limit_all_stay() -> None:
    assert expired(range(50), Retention(), newest_verified=49) == []


def test_multiples_of_the_interval_stay() -> None:
    found = expired(range(10, 100, 10), Retention(keep_last=1, interval=30), newest_verified=90)
    assert found == [10, 20, 40, 50, 70, 80]


def test_the_newest_verified_stays_though_it_is_old() -> None:
    assert expired([10, 20, 30, 40], Retention(keep_last=1), newest_verified=20) == [10, 30]


def test_one_always_stays() -> None:
    assert expired([5], Retention(keep_last=1), newest_verified=5) == []
    with pytest.raises(AssertionError, match="keep_last is 0"):
        expired([5], Retention(keep_last=0), newest_verified=5)
