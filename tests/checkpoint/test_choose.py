# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from megatron_core.checkpoint.choose import Source, choose
from megatron_core.checkpoint.directory import prepare, step_directory
from megatron_core.errors import CheckpointError
from megatron_core.parallel.context import ParallelContext, single_process_context
from tests.checkpoint import small_checkpoint
from tests.rank_pool import ranks


@ranks({}, 3)
def test_all_ranks_get_the_newest(ctx: ParallelContext, tmp_path: Path) -> None:
    saved = {step: small_checkpoint.save(tmp_path, step) for step in (90, 100)} if ctx.rank == 0 else None
    source = Source(root=tmp_path)
    chosen = choose(source, ctx)
    assert chosen is not None and chosen.step == 100 and chosen.directory == step_directory(tmp_path, 100)
    assert saved is None or chosen.manifest == saved[100]
    older = choose(source, ctx, below=100)
    assert older is not None and older.step == 90
    asked = choose(Source(root=tmp_path, step=90), ctx)
    assert asked is not None and asked.step == 90
    with pytest.raises(CheckpointError, match="no older one"):
        choose(source, ctx, below=90)
    with pytest.raises(CheckpointError, match=r"step_00000007 does not exist; usable steps in .*: 90, 100"):
        choose(Source(root=tmp_path, step=7), ctx)


def test_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alone = single_process_context()
    assert choose(Source(root=tmp_path / "none"), alone) is None
    prepare(tmp_path, 10)
    with caplog.at_level("WARNING", "megatron_core"):
        assert choose(Source(root=tmp_path, own=True), alone) is None
    assert "passed over: " in caplog.text and "step_00000010 has no manifest.json" in caplog.text
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        choose(Source(root=tmp_path), alone)
