# SPDX-License-Identifier: Apache-2.0
import shlex

import pytest

from tools import plan

WORDS = shlex.split(
    "show --hardware dgx-a100-80 --nodes 2 --num-layers 8 --hidden-size 1024 --num-attention-heads 16 "
    "--bf16 --seq-length 512 --max-position-embeddings 512 --vocab-size 50257 --global-batch-size 64 "
    "--micro-batch-size 2 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 "
    "--sequence-parallel --train-samples 1000000"
)


def test_time_by_part_and_memory_by_category(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(WORDS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "16 x A100-SXM4-80GB (dgx-a100-80): tp 2 x pp 4 x dp 2, 1f1b, microbatches of 2, recompute nothing, "
        "sequence parallel"
    )
    assert lines[1].startswith("batch 64, ") and "mfu 0." in lines[1]
    assert lines[2].startswith("1 Gtok in 0.0 days")
    words = [line.split() for line in lines]
    assert next(line for line in words if line[:1] == ["step"])[1:]
    assert ["GB", "of", "a", "rank", "stage", "0", "stage", "2", "stage", "3"] in words
    together = next(line for line in words if line[:1] == ["together"])
    parts = [float(line[1]) for line in words[words.index(together) - 6 : words.index(together)]]
    assert float(together[1]) == pytest.approx(sum(parts), abs=0.05)
    assert lines[-1] == "of 84.9 GB"
