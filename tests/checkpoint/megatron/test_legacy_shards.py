# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint.megatron.file_tensor import FileTensor
from megatron_core.checkpoint.megatron.legacy_shards import joined
from megatron_core.checkpoint.megatron.parameters import Parameter, parameters
from megatron_core.checkpoint.rectangle import whole
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError
from tests.checkpoint.megatron.trees import old_qkv, qkv, weights
from tests.small_model import small


def parameter_of(config: ModelConfig, name: str) -> Parameter:
    return next(parameter for parameter in parameters(config, 40) if parameter.name.endswith(name))


def stored(folder: Path, shards: list[torch.Tensor]) -> list[FileTensor]:
    found = []
    for rank, shard in enumerate(shards):
        path = folder / str(rank)
        path.write_bytes(shard.contiguous().numpy().tobytes())
        found.append(FileTensor(path=path, start=0, layout=torch.empty(shard.shape, dtype=shard.dtype, device="meta")))
    return found


@pytest.mark.parametrize("kind", ["weight", "bias"])
@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.parametrize("tp", [1, 2])
def test_heads_of_every_version(tmp_path: Path, kind: str, version: int, tp: int) -> None:
    config = small()
    ours = weights(config)
    expected = qkv(ours, 0, kind, config)
    shards = old_qkv(ours, 0, kind, config, version, tp) if version < 2 else list(expected.chunk(tp))
    parameter = parameter_of(config, f"layers.0.self_attention.linear_qkv.{kind}")
    tensor = joined("w", parameter, stored(tmp_path, shards), float(version))
    tensor.check()
    read = torch.empty(tensor.shape)
    tensor.fill(read, whole(tensor.shape))
    assert torch.equal(read, expected)


def test_old_versions_had_no_groups(tmp_path: Path) -> None:
    config = small(group_query_attention=True, num_query_groups=2)
    parameter = parameter_of(config, "layers.0.self_attention.linear_qkv.weight")
    shards = stored(tmp_path, [torch.zeros(parameter.shape)])
    assert joined("w", parameter, shards, 2.0).shape == parameter.shape
    with pytest.raises(CheckpointError, match="grouped or cut heads in version 1"):
        joined("w", parameter, shards, 1.0)


def test_a_shard_of_another_shape(tmp_path: Path) -> None:
    parameter = parameter_of(small(), "layers.0.mlp.linear_fc2.weight")
    shards = stored(tmp_path, [torch.zeros(32, 64), torch.zeros(32, 63)])
    with pytest.raises(CheckpointError, match=r"w has shape \(32, 63\), not \(32, 64\)"):
        joined("w", parameter, shards, 3.0)
    with pytest.raises(CheckpointError, match="cannot have been cut for 3 ranks"):
        joined("w", parameter, [*shards, shards[0]], 3.0)


def test_what_all_ranks_hold_must_be_the_same_on_each(tmp_path: Path) -> None:
    parameter = parameter_of(small(), "layers.0.input_layernorm.weight")
    tensor = joined("w", parameter, stored(tmp_path, [torch.ones(32), torch.ones(32)]), 3.0)
    tensor.require_equal_copies()
    tensor = joined("w", parameter, stored(tmp_path, [torch.ones(32), torch.zeros(32)]), 3.0)
    with pytest.raises(CheckpointError, match="w is not the same"):
        tensor.require_equal_copies()
