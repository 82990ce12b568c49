# SPDX-License-Identifier: Apache-2.0
"""Every layout is one that the configuration accepts, and its flags give it back."""

import dataclasses
import itertools
import shlex

import pytest

from megatron_core.config.cli import parse
from megatron_core.config.model import ModelConfig
from megatron_core.config.parallel import ParallelConfig
from megatron_core.config.run import RunConfig
from megatron_core.config.training import TrainingConfig
from megatron_core.config.validate import violations
from megatron_core.errors import ConfigError
from megatron_core.planner.layouts import Layout, flags, layouts, tensor_sizes

BASE = shlex.split(
    "--num-layers 10 --hidden-size 64 --num-attention-heads 8 --seq-length 64 --max-position-embeddings "
    "64 --vocab-size 1024 --bf16 --lr 1e-3 --mock-data --train-samples 4096 --global-batch-size 48"
)
OWN = shlex.split("--micro-batch-size 1 --recompute-granularity full --recompute-num-layers 2 --sequence-parallel")


def asked(*words: str) -> RunConfig:
    return parse([*BASE, "--micro-batch-size", "1", *words], 1).asked


def test_every_layout_is_accepted_as_it_is_and_no_two_are_the_same() -> None:
    config = asked("--rampup-batch-size", "8", "8", "1024")
    found = list(layouts(config, 16, 8))
    assert len(set(found)) == len(found) > 100
    assert {layout.tp * layout.pp * layout.dp for layout in found} == {16}
    for layout in found[::7]:
        assert violations(layout.of(config), 16) == [], layout.name


def test_flags_give_the_layout_behind_those_of_the_run_and_without_its_own_layout() -> None:
    config = asked(*OWN)
    for layout in list(layouts(config, 16, 8))[::29]:
        placed = layout.of(config)
        words = [word for flag in flags(placed, config) for word in flag.split()]
        for before in (OWN, []):
            parsed = parse([*BASE, *before, *words], 16)
            assert parsed.asked.parallel == placed.parallel, layout.name
            assert parsed.asked.training.micro_batch_size == layout.micro_batch


def test_microbatches_follow_each_other_from_the_smallest() -> None:
    def kind(layout: Layout) -> Layout:
        return dataclasses.replace(layout, micro_batch=1)

    groups = [list(group) for _, group in itertools.groupby(layouts(asked(), 16, 8), kind)]
    assert len(groups) == len({kind(group[0]) for group in groups})
    assert all(a.micro_batch < b.micro_batch for group in groups for a, b in itertools.pairwise(group))


def test_tensor_groups_fill_a_node_or_whole_ones() -> None:
    model = ModelConfig(num_layers=2, hidden_size=96, num_attention_heads=48, seq_length=8)
    assert tensor_sizes(model, 48, 8) == [1, 2, 4, 8, 16]
    assert tensor_sizes(dataclasses.replace(model, num_attention_heads=12), 48, 8) == [1, 2, 4]
    grouped = dataclasses.replace(model, group_query_attention=True, num_query_groups=2)
    assert tensor_sizes(grouped, 48, 8) == [1, 2, 4, 8, 16]


def test_a_split_by_cost_counts_only_where_it_differs() -> None:
    wide = asked("--vocab-size", "200000")
    splits = {layout.split for layout in layouts(wide, 2, 8) if layout.pp == 2}
    assert splits == {"count", "cost"}
    assert {layout.split for layout in layouts(asked("--vocab-size", "64"), 2, 8)} == {"count"}


def test_a_ramp_takes_steps_that_the_replicas_divide() -> None:
    config = asked("--rampup-batch-size", "4", "4", "1024")
    assert config.training.rampup_batch_size == (4, 4, 1024)
    layout = Layout(1, 1, 4, 2, "1f1b", 1, "count", False, None)
    assert layout.of(config).training.rampup_batch_size == (8, 8, 1024)
    assert "--rampup-batch-size 8 8 1024" in flags(layout.of(config), config)


def test_layouts_need_the_batch_that_they_share() -> None:
    config = RunConfig(parallel=ParallelConfig(), training=TrainingConfig(micro_batch_size=1))
    with pytest.raises(ConfigError, match="set --global-batch-size"):
        next(layouts(config, 8, 8))


def test_names_say_what_differs() -> None:
    layout = Layout(8, 35, 8, 1, "interleaved", 3, "cost", True, "selective")
    assert layout.name == (
        "tp 8 x pp 35 x dp 8, b 1, interleaved 3, split by cost, sequence parallel, recompute selective"
    )
