# SPDX-License-Identifier: Apache-2.0
"""Which machine and which run are planned."""

import argparse
import shlex

import pytest

from megatron_core.errors import ConfigError
from tools.plan_machine import Machine, add_machine, asked_run, given_run, machine_of, own_layout

MODEL = shlex.split(
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--vocab-size 512 --global-batch-size 8"
)
LAYOUT = shlex.split("--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --micro-batch-size 2")


def machine(*words: str) -> Machine:
    parser = argparse.ArgumentParser()
    add_machine(parser)
    return machine_of(parser.parse_args(words))


def test_nodes_have_the_devices_of_their_kind() -> None:
    assert machine("--hardware", "dgx-2", "--nodes", "3").devices == 48
    assert str(machine("--hardware", "dgx-2", "--devices", "1")) == "1 x V100-SXM3-32GB (dgx-2)"
    with pytest.raises(ConfigError, match="at least 1"):
        machine("--hardware", "dgx-2", "--nodes", "0")


def test_a_search_takes_the_run_whatever_its_layout() -> None:
    config = asked_run([*MODEL, *LAYOUT, "--num-layers-per-virtual-pipeline-stage", "1"])
    assert config.parallel.model_parallel_size == 1 and config.training.global_batch_size == 8
    assert config.parallel.ddp_bucket_size is None, "nothing is derived yet"


def test_a_given_layout_has_to_suit_the_devices() -> None:
    assert given_run([*MODEL, *LAYOUT], 8).parallel.tensor_model_parallel_size == 4
    assert own_layout([*MODEL, *LAYOUT], 12) is None
    with pytest.raises(ConfigError, match="12 ranks do not divide"):
        given_run([*MODEL, *LAYOUT], 12)


def test_what_only_training_needs_may_be_left_out_and_is_kept_where_given() -> None:
    config = asked_run([*MODEL, "--lr", "3e-4", "--train-samples", "64"])
    assert (config.optim.lr, config.training.train_samples, config.training.train_iters) == (3e-4, 64, None)
    with pytest.raises(ConfigError, match="vocab-size"):
        asked_run([word for word in MODEL if word not in ("--vocab-size", "512")])
