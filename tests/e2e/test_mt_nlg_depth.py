# SPDX-License-Identifier: Apache-2.0
"""MT-NLG's depth (arXiv:2201.11990: 105 layers on 35 stages) at tiny width: 35 processes equal one."""

import pytest

from tests.e2e.proof import assert_equal, reference, train_rank
from tests.rank_pool import RankPool

MODEL = (
    "--mock-data --vocab-size 61 --hidden-dropout 0 --attention-dropout 0 --fp64 --num-layers 105 --hidden-size 16 "
    "--num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 --global-batch-size 4"
)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_105_layers_on_35_stages_equal_one_process(rank_pool: RankPool) -> None:
    expected = reference(MODEL, 3)
    layout = f"{MODEL} --pipeline-model-parallel-size 35"
    curve = rank_pool.call(train_rank, 35, (layout, 3), timeout=900)[0]
    assert_equal(curve, expected)
