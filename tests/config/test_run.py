# SPDX-License-Identifier: Apache-2.0
import pytest


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"swiglu": True},
        {"add_bias_linear": False},
        {"data_path": ("a",), "mock_data": False, "vocab_file": "v", "merge_file": "m"},
        {"split": "969, 30, 1"},
        {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 2, "sequence_parallel": True},
        {"train_iters": None, "train_samples": 1000},
        {"tensor_model_parallel_size": 2, "sequence_parallel": True, "global_batch_size": 16},
        {"save": "out", "save_interval": 10, "save_retain_interval": 100},
        {"save": "out", "save_interval": 10, "save_retain_interval": 100, "most_recent_k": -1},
    ],
)
def test_resolving_twice_changes_nothing(config_with, values):
    once = config_with(**values).resolve(4)
    assert once.resolve(4) == once


def test_what_depends_on_other_fields_is_written_out(config_with):
    config = config_with(
        pipeline_model_parallel_size=2,
        num_layers_per_virtual_pipeline_stage=2,
        sequence_parallel=True,
        mock_data=False,
        data_path=("a",),
        vocab_file="v",
    ).resolve(8)
    assert (config.model.ffn_hidden_size, config.model.kv_channels, config.model.gelu) == (256, 8, "tanh")
    assert config.parallel.pipeline_schedule == "interleaved"
    assert config.parallel.num_virtual_stages_per_pipeline_rank == 2
    assert not config.parallel.sequence_parallel  # nothing to cut at tp 1
    assert config.parallel.ddp_bucket_size == 40_000_000
    assert config.optim.lr_decay_iters == 100
    assert (config.data.split, config.data.tokenizer_type) == ("969,30,1", "GPT2BPETokenizer")
    assert config.training.global_batch_size == 2 * 4


def test_spaces_in_the_split_go(config_with):
    assert config_with(split="969, 30, 1").resolve(1).data.split == "969,30,1"


def test_the_bucket_grows_with_the_replicas(config_with):
    assert config_with().resolve(64).parallel.ddp_bucket_size == 64_000_000


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({}, "auto"),
        ({"optimizer_cpu_offload": True}, "host"),
        ({"optimizer_cpu_offload": True, "pipeline_model_parallel_size": 2}, "device"),
        ({"optimizer_cpu_offload": True, "offload_gradients": "device"}, "device"),
        ({"optimizer_cpu_offload": True, "pipeline_model_parallel_size": 2, "offload_gradients": "host"}, "host"),
    ],
)
def test_gradients_follow_the_optimizer_to_the_host_where_there_is_no_pipeline(config_with, values, place):
    assert config_with(**values).resolve(2).optim.offload_gradients == place


def test_how_many_checkpoints_stay_is_written_out(config_with):
    assert config_with().resolve(1).checkpoint.most_recent_k == -1
    assert config_with(save_interval=10, save_retain_interval=100).resolve(1).checkpoint.most_recent_k == 1
