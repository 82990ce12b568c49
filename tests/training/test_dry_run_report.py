# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.errors import ConfigError
from megatron_core.training.dry_run_report import dry_run_report
from tests.e2e.proof import FAMILIES, config_of

TP2_PP2 = f"{FAMILIES['gpt2']} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"


def test_it_tells_every_collective_in_order_and_what_the_rank_needs() -> None:
    text = dry_run_report(config_of(TP2_PP2, 4), 4, 3)
    order, counts, facts = (part.splitlines() for part in text.split("\n\n"))
    assert order[:3] == [
        "communicated, in order:",
        "    1 x broadcast tp of 2 [4, 8, 1, 16] int64",
        "    1 x receive pp 1>3 [16, 1, 32] float32",
    ]
    assert order[-1] == "    1 x all_reduce world of 4 [10] float64"
    assert any(line.split()[:3] == ["8", "receive", "pp"] for line in counts)
    assert facts[0] == "rank 3 of 4: stage 1 of 2 (layers 2-3), tp 2 x pp 2 x dp 1, 8 microbatches"
    assert facts[1].startswith("53,344 parameters in all, ")
    found = {line.split(maxsplit=1)[1]: int(line.split()[0].replace(",", "")) for line in facts[4:]}
    assert found["total"] == pytest.approx(found["by the planner's formula"], rel=0.05)
    assert found["total"] == sum(
        found[name] for name in ("parameters", "gradients", "optimizer", "activations", "temporary")
    )


def test_without_a_rank_it_is_one_of_the_stage_that_needs_most() -> None:
    assert "\nrank 0 of 4: stage 0 of 2" in dry_run_report(config_of(TP2_PP2, 4), 4, None)


@pytest.mark.slow
def test_of_a_long_step_the_first_microbatches_are_gone_through() -> None:
    text = dry_run_report(config_of(f"{FAMILIES['gpt2']} --global-batch-size 2000 --num-layers 240", 1), 1, 0)
    assert "2000 microbatches, of which the first 3 were gone through: the others repeat them" in text


def test_a_rank_that_the_world_has_not() -> None:
    with pytest.raises(ConfigError, match="--rank 4 is none of 4 ranks: give 0 to 3"):
        dry_run_report(config_of(TP2_PP2, 4), 4, 4)
