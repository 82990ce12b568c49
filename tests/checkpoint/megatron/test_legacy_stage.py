# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_core.checkpoint.megatron import legacy_stage
from megatron_core.checkpoint.megatron.legacy_stage import parameter_dtype, write_stage
from megatron_core.checkpoint.megatron.parameters import parameters
from megatron_core.checkpoint.megatron.target import Target
from megatron_core.checkpoint.stored_model import StoredModel
from megatron_core.errors import CheckpointError
from tests.checkpoint.megatron.stored import save_weights
from tests.checkpoint.megatron.test_import_model import GPT, LLAMA
from tests.checkpoint.megatron.trees import chunk_weights, weights


def state_of(path: Path) -> dict[str, Any]:
    return torch.load(path / "model_optim_rng.pt", weights_only=False)


@pytest.mark.parametrize("config", [GPT, LLAMA])
def test_files_are_those_that_megatron_itself_would_write(
    tmp_path: Path, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(legacy_stage, "_BLOCK_BYTES", 1000)
    ours = weights(config, torch.bfloat16)
    step = save_weights(tmp_path / "run", ours, config)
    target = Target(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        num_layers_per_virtual_pipeline_stage=1,
        transformer_engine=False,
    )
    done: list[int] = []
    with StoredModel(step) as stored:
        for rank in range(2):
            write_stage(stored, parameters(stored.model, 48), target, rank, tmp_path, done.append)
    nbytes = 0
    for p in range(2):
        for t in range(2):
            state = state_of(tmp_path / f"mp_rank_{t:02d}_{p:03d}")
            assert state["checkpoint_version"] == 3.0 and state["iteration"] == 1000
            for chunk in range(2):
                k = chunk * 2 + p
                expected = chunk_weights(
                    ours, config, range(k, k + 1), t, 2, first=k == 0, last=k == 3, names="core", version=3
                )
                found = state[f"model{chunk}"]
                assert found.keys() == expected.keys()
                for name, values in expected.items():
                    real = found[name]
                    if name in ("embedding.word_embeddings.weight", "output_layer.weight") and t == 1:
                        assert not real[37 - 48 :].any()
                        real, values = real[: 37 - 24], values[: 37 - 24]
                    assert torch.equal(real, values), (p, t, chunk, name)
                    nbytes += found[name].nbytes
    assert sum(done) == nbytes


def test_one_pipeline_rank_has_short_names_and_empty_states(tmp_path: Path) -> None:
    ours = weights(GPT)
    with StoredModel(save_weights(tmp_path / "run", ours, GPT)) as stored:
        write_stage(stored, parameters(stored.model, 40), Target(), 0, tmp_path, lambda nbytes: None)
        with pytest.raises(CheckpointError, match="cannot write"):
            write_stage(stored, parameters(stored.model, 40), Target(), 0, tmp_path, lambda nbytes: None)
    model = state_of(tmp_path / "mp_rank_00")["model"]
    assert model["decoder.layers.3.self_attention.linear_qkv._extra_state"] is None
    assert torch.equal(model["decoder.layers.3.mlp.linear_fc1.layer_norm_bias"], ours["layers.3.mlp_norm.bias"])


def test_parts_of_one_matrix_have_one_dtype(tmp_path: Path) -> None:
    ours = weights(GPT)
    ours["layers.2.attention.q.weight"] = ours["layers.2.attention.q.weight"].half()
    step = save_weights(tmp_path, ours, GPT)
    (qkv,) = [p for p in parameters(GPT, 40) if p.name == "decoder.layers.2.self_attention.linear_qkv.weight"]
    with StoredModel(step) as stored, pytest.raises(CheckpointError, match="give --dtype"):
        parameter_dtype(stored, qkv)
    with StoredModel(step, torch.bfloat16) as stored:
        assert parameter_dtype(stored, qkv) == torch.bfloat16
