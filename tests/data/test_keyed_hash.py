# SPDX-License-Identifier: Apache-2.0
"""The hash is pinned: data order hangs on it, so it may never change."""

from megatron_core.data.keyed_hash import keyed_hash


def test_pinned_values() -> None:
    assert keyed_hash("epoch", 1234, 0) == 3691009948766801883
    assert keyed_hash("epoch", 1234, 0) == keyed_hash("epoch", 1234, 0)


def test_types_and_boundaries_count() -> None:
    keys = [("ab", "c"), ("a", "bc"), ("abc",), (1, 2), (12,), ("1", 2), ("1", "2")]
    assert len({keyed_hash(*key) for key in keys}) == len(keys)
