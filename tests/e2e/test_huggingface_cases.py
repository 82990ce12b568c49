# SPDX-License-Identifier: Apache-2.0
"""What went wrong in conversions of others (../shared/cases.md, CNV-01 to CNV-06), against transformers itself."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatron_core.checkpoint.huggingface.export_model import export_model
from megatron_core.checkpoint.huggingface.import_model import import_model, read_architecture
from megatron_core.checkpoint.huggingface.weight_files import SINGLE
from megatron_core.checkpoint.stored_model import StoredModel
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError
from tests.checkpoint.huggingface.our_logits import logits_at
from tests.checkpoint.huggingface.random_models import load, logits_of, save
from tests.e2e.proof import config_of
from tests.inference.saved_model import save as save_ours

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = ([k * k % 61 for k in range(16)], [5, 60, 3])
LAYOUTS = {"one": {}, "tp2": {"tp": 2}, "pp2": {"pp": 2}}
MOCK = "--mock-data --vocab-size 61 --init-method-std 0.3"
ROPE = "--position-embedding-type rope"
GATED = f"{ROPE} --normalization RMSNorm --swiglu --disable-bias-linear --ffn-hidden-size 48"


def model_of(flags: str) -> ModelConfig:
    return replace(config_of(f"{MOCK} {flags}", 1).model, num_layers=2)


def imported(source: Path, run: Path) -> Path:
    import_model(source, run, read_architecture(source), report=lambda n: None)
    return run


def exported(run: Path, output: Path) -> Path:
    with StoredModel(run) as stored:
        export_model(stored, output, report=lambda n: None)
    return output


def config_in(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "config.json").read_text())
    return found


def assert_same(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def test_cnv_01_the_heads_of_grouped_queries(tmp_path: Path) -> None:
    pairs = [(4, 4), (4, 2), (4, 1), (6, 2), (6, 3)]
    expected, runs = [], []
    for heads, groups in pairs:
        name = f"{heads}-{groups}"
        sizes = {
            "hidden_size": 48, "num_attention_heads": heads, "num_key_value_heads": groups, "num_hidden_layers": 2,
            "intermediate_size": 80, "vocab_size": 61, "max_position_embeddings": 32,
        }  # fmt: skip
        expected.append(logits_of(save(tmp_path / name, "qwen2", sizes), PROMPTS))
        runs.append(imported(tmp_path / name, tmp_path / f"{name}.run"))
        back = exported(runs[-1], tmp_path / f"{name}.back")
        before, after = (load_file(path / SINGLE) for path in (tmp_path / name, back))
        assert all(torch.equal(before[key], after[key]) for key in before | after)
    for layout, count in ((LAYOUTS["one"], 5), (LAYOUTS["tp2"], 4)):  # 3 groups cannot be cut by 2
        for got, wanted in zip(logits_at(layout, runs[:count], PROMPTS), expected):
            assert_same(got, wanted)


@pytest.mark.parametrize(
    ("flags", "key", "activation"),
    [
        ("", "activation_function", "gelu_new"),
        ("--openai-gelu", "activation_function", "gelu_new"),
        ("--no-bias-gelu-fusion", "activation_function", "gelu"),
        ("--squared-relu", "activation_function", "relu2"),
        (f"{ROPE} --no-bias-gelu-fusion", "hidden_act", "gelu"),
        (GATED, "hidden_act", "silu"),
    ],
)
def test_cnv_03_the_config_names_the_activation_that_was_used(
    tmp_path: Path, flags: str, key: str, activation: str
) -> None:
    step = save_ours(tmp_path / "run", model_of(flags), dtype=torch.float32)
    folder = exported(step, tmp_path / "hf")
    assert config_in(folder)[key] == activation
    assert_same(logits_at({}, [step], PROMPTS)[0], logits_of(load(folder), PROMPTS))


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3])
@pytest.mark.parametrize(
    ("flags", "key"),
    [
        ("", "layer_norm_epsilon"),
        (ROPE, "layer_norm_eps"),
        (GATED, "rms_norm_eps"),
        (f"{GATED} --qk-layernorm", "rms_norm_eps"),
    ],
    ids=["gpt2", "neox", "llama", "qwen3"],
)  # fmt: skip
def test_cnv_04_the_epsilon_of_norms(tmp_path: Path, flags: str, key: str, epsilon: float) -> None:
    # Weights so small that the activations are about as small as the epsilon's root.
    model = replace(model_of(f"{flags} --norm-epsilon {epsilon}"), init_method_std=1e-3)
    step = save_ours(tmp_path / "run", model, dtype=torch.float32)
    folder = exported(step, tmp_path / "hf")
    assert config_in(folder)[key] == epsilon
    found = logits_at({}, [step], PROMPTS)[0]
    assert_same(found, logits_of(load(folder), PROMPTS))
    other = load(folder)
    for module in other.modules():
        for name in ("eps", "variance_epsilon"):
            if hasattr(module, name):
                setattr(module, name, 3e-5)
    assert (found[0] - logits_of(other, PROMPTS)[0]).abs().max() > 0.01 * found[0].abs().max(), "eps does not matter"


@pytest.mark.parametrize("tied", [True, False])
def test_cnv_06_the_head_is_tied_where_it_was(tmp_path: Path, tied: bool) -> None:
    flags = "" if tied else "--untie-embeddings-and-output-weights"
    runs, folders = [], []
    for name, more in (("gpt2", ""), ("llama", GATED)):
        step = save_ours(tmp_path / f"{name}.run", model_of(f"{flags} {more}"), dtype=torch.float32)
        runs.append(step)
        folders.append(exported(step, tmp_path / name))
    for layout in (LAYOUTS["one"], LAYOUTS["pp2"]):
        for got, folder in zip(logits_at(layout, runs, PROMPTS), folders):
            assert_same(got, logits_of(load(folder), PROMPTS))
    for folder in folders:
        tensors = load_file(folder / SINGLE)
        assert config_in(folder)["tie_word_embeddings"] is tied
        assert ("lm_head.weight" in tensors) is not tied
        if not tied:
            del tensors["lm_head.weight"]
            save_file(tensors, folder / SINGLE)
            with pytest.raises(CheckpointError, match=r"hold no lm_head\.weight; the config says that it is not tied"):
                imported(folder, folder.with_suffix(".again"))
            assert not folder.with_suffix(".again").exists()
