# SPDX-License-Identifier: Apache-2.0
"""What one rank knows, all know; no rank is left waiting for one that failed."""

import pytest

from megatron_core.checkpoint.agree import first_failure, from_rank_0, union_of_shapes
from megatron_core.errors import CheckpointError, ConfigError, DataError, UserError
from megatron_core.parallel.context import ParallelContext, single_process_context
from tests.rank_pool import ranks

ALONE = single_process_context()


def only_rank_0(ctx: ParallelContext, result: bytes | Exception) -> bytes:
    assert ctx.rank == 0, "nobody else looks"
    if isinstance(result, Exception):
        raise result
    return result


@ranks({}, 3, {"tp": 2, "pp": 2})
def test_what_rank_0_found(ctx: ParallelContext) -> None:
    for found in (b"", b"x", bytes(range(256)) * 5000):
        assert from_rank_0(lambda found=found: only_rank_0(ctx, found), ctx) == found


@ranks({}, 3)
def test_what_rank_0_could_not_find(ctx: ParallelContext) -> None:
    errors: list[tuple[Exception, type[UserError], str]] = [
        (CheckpointError("no – none"), CheckpointError, "^no – none$"),
        (ConfigError("wrong"), ConfigError, "^wrong$"),
        (DataError("no file"), DataError, "^no file$"),
        (
            PermissionError(13, "Permission denied", "/x"),
            CheckpointError,
            "cannot read .*: .*denied: '/x'",
        ),
    ]
    for raised, expected, text in errors:
        with pytest.raises(expected, match=text):
            from_rank_0(lambda raised=raised: only_rank_0(ctx, raised), ctx)


@ranks(4)
def test_the_lowest_rank_that_failed_says_why(ctx: ParallelContext) -> None:
    assert first_failure(None, ctx) is None
    assert first_failure("damaged" if ctx.rank in (1, 3) else None, ctx) == "[rank 1] damaged"
    assert first_failure(f"of {ctx.rank}", ctx) == "[rank 0] of 0"
    assert first_failure("", ctx) == "[rank 0] no reason given"


def test_one_rank_alone() -> None:
    assert first_failure(None, ALONE) is None
    assert first_failure("damaged", ALONE) == "damaged"
    assert union_of_shapes({"w": (2, 3), "scalar": ()}, ALONE) == {"w": (2, 3), "scalar": ()}


@ranks({"tp": 2, "pp": 2}, {"tp": 2, "dp": 2, "pp": 2})
def test_stages_and_slices_together_hold_every_tensor(ctx: ParallelContext) -> None:
    """A tp rank of nothing but vocabulary padding holds no part of the table; the stage does all the same."""
    own = {f"layers.{ctx.pp.coordinate}.w": (4, 2 + ctx.pp.coordinate), "norm": (7,)}
    if ctx.pp.coordinate == 0 and ctx.tp.coordinate == 0:
        own["table"] = (61, 32)
    expected = {"layers.0.w": (4, 2), "layers.1.w": (4, 3), "norm": (7,), "table": (61, 32)}
    assert union_of_shapes(own, ctx) == expected
    assert union_of_shapes({}, ctx) == {}
