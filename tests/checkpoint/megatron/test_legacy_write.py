# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint.megatron.legacy_write import export_bytes, export_legacy, iteration_name
from megatron_core.checkpoint.megatron.open_megatron import open_megatron
from megatron_core.checkpoint.megatron.target import Target
from megatron_core.checkpoint.stored_model import StoredModel
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError, ConfigError
from tests.checkpoint.megatron.stored import save_weights
from tests.checkpoint.megatron.test_import_model import GPT, LLAMA, require_same
from tests.checkpoint.megatron.trees import weights


def nothing(nbytes: int) -> None:
    pass


@pytest.mark.parametrize(
    ("config", "target"),
    [
        (GPT, Target()),
        (GPT, Target(tensor_model_parallel_size=2, pipeline_model_parallel_size=2)),
        (
            LLAMA,
            Target(
                tensor_model_parallel_size=2,
                pipeline_model_parallel_size=2,
                num_layers_per_virtual_pipeline_stage=1,
            ),
        ),
        (LLAMA, Target(tensor_model_parallel_size=3, pipeline_model_parallel_size=4, transformer_engine=False)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_goes_out_comes_back_to_the_bit(
    tmp_path: Path, config: ModelConfig, target: Target, dtype: torch.dtype
) -> None:
    if config is LLAMA and target.tensor_model_parallel_size == 3:
        config = replace(config, num_query_groups=3, ffn_hidden_size=48)
    ours = weights(config, dtype)
    done: list[int] = []
    with StoredModel(save_weights(tmp_path / "run", ours, config)) as stored:
        directory = export_legacy(stored, tmp_path / "save", target, report=done.append)
        assert directory == tmp_path / "save" / "iter_0001000" and sum(done) == export_bytes(stored, target)
    require_same(tmp_path / "save", ours, config)
    assert sorted(path.name for path in (tmp_path / "save").iterdir()) == [
        "iter_0001000",
        "latest_checkpointed_iteration.txt",
    ]


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (4, 1), (6, 2), (6, 3)])
@pytest.mark.parametrize("tp", [1, 2])
def test_groups_of_queries_both_ways_cnv_01(tmp_path: Path, heads: int, groups: int, tp: int) -> None:
    config = replace(LLAMA, num_layers=1, num_attention_heads=heads, num_query_groups=groups, add_bias_linear=True)
    ours = weights(config)
    with StoredModel(save_weights(tmp_path / "run", ours, config)) as stored:
        target = Target(tensor_model_parallel_size=tp)
        if groups == 3 and tp == 2:
            with pytest.raises(ConfigError, match="6 heads in 3 groups do not divide by 2"):
                export_legacy(stored, tmp_path / "save", target, report=nothing)
            return
        export_legacy(stored, tmp_path / "save", target, report=nothing)
    require_same(tmp_path / "save", ours, config)


def test_step_0_is_a_release(tmp_path: Path) -> None:
    assert iteration_name(12) == "iter_0000012"
    ours = weights(GPT)
    with StoredModel(save_weights(tmp_path / "run", ours, GPT, step=0)) as stored:
        assert export_legacy(stored, tmp_path / "save", Target(), report=nothing).name == "release"
    assert (tmp_path / "save" / "latest_checkpointed_iteration.txt").read_text() == "release"
    assert open_megatron(tmp_path / "save").iteration == 0


def test_nothing_is_left_of_what_is_refused(tmp_path: Path) -> None:
    save = tmp_path / "save"

    def refuse(opened: object) -> None:
        raise CheckpointError("other logits")

    with StoredModel(save_weights(tmp_path / "run", weights(GPT), GPT)) as stored:
        with pytest.raises(CheckpointError, match="other logits"):
            export_legacy(stored, save, Target(), report=nothing, check=refuse)
        assert list(save.iterdir()) == []
        with pytest.raises(ConfigError, match="do not make 3 pipeline stages"):
            export_legacy(stored, save, Target(pipeline_model_parallel_size=3), report=nothing)
        export_legacy(stored, save, Target(), report=nothing)
        with pytest.raises(CheckpointError, match="is there already: give another --output"):
            export_legacy(stored, save, Target(), report=nothing)
    require_same(save, weights(GPT), GPT)


def test_a_checkpoint_that_is_not_what_its_config_says(tmp_path: Path) -> None:
    ours = weights(GPT)
    cases = {
        "shape": ({**ours, "final_norm.bias": torch.ones(3)}, GPT, "final_norm.bias has shape"),
        "rest": ({**ours, "extra.weight": torch.ones(3)}, GPT, "1 weights have no place .* such as extra.weight"),
        "layers": (ours, replace(GPT, num_layers=10**9), "says 1000000000 layers but holds"),
        "heads": (ours, replace(GPT, num_attention_heads=5), "not a multiple"),
    }
    for name, (held, config, message) in cases.items():
        step = save_weights(tmp_path / name, held, config)
        with StoredModel(step) as stored, pytest.raises((CheckpointError, ConfigError), match=message):
            export_legacy(stored, tmp_path / "save", Target(), report=nothing)
    assert not (tmp_path / "save").exists()


_EXPORT = """
import sys, time
from pathlib import Path
from megatron_core.checkpoint.megatron.legacy_write import export_legacy
from megatron_core.checkpoint.megatron.target import Target
from megatron_core.checkpoint.stored_model import StoredModel
def report(nbytes):
    print("written", flush=True)
    time.sleep(60)
with StoredModel(Path(sys.argv[1])) as stored:
    export_legacy(stored, Path(sys.argv[2]), Target(), report=report)
"""


def test_a_killed_export_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    ours = weights(GPT)
    step, save = save_weights(tmp_path / "run", ours, GPT), tmp_path / "save"
    words = [sys.executable, "-c", _EXPORT, str(step), str(save)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout is not None and process.stdout.readline() == b"written\n"
        os.kill(process.pid, signal.SIGKILL)
    assert [path.name for path in save.iterdir()] == [".iter_0001000.unfinished"]
    with pytest.raises(CheckpointError, match="holds no checkpoint of Megatron-LM"):
        open_megatron(save)
    with StoredModel(step) as stored:
        export_legacy(stored, save, Target(), report=nothing)
    require_same(save, ours, GPT)
    assert not (save / ".iter_0001000.unfinished").exists()
