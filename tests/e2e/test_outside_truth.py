# SPDX-License-Identifier: Apache-2.0
"""One process of ours against an outside truth: transformers' models under torch.optim.AdamW and clip_grad_norm_.

Both start from the same weights and see the same batches. transformers takes RMSNorm and the rotary table through
float32 whatever the dtype, so the float64 proof puts the same formulas in float64 in their place; in float32 the
models are left untouched.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from megatron_core.checkpoint.huggingface.family import Family
from megatron_core.checkpoint.huggingface.gpt2 import GPT2
from megatron_core.checkpoint.huggingface.link import by_theirs
from megatron_core.checkpoint.huggingface.llama import LLAMA
from megatron_core.config.model import ModelConfig
from megatron_core.training.train_step import train_step
from tests.e2e.proof import Curve, assert_equal, config_of, start_rank, whole_weights

State = dict[str, torch.Tensor]

STEPS, BATCH, LR, BASE = 5, 8, 1e-3, 10000.0
COMMON = "--mock-data --vocab-size 61 --hidden-dropout 0 --attention-dropout 0 --micro-batch-size 2 --weight-decay 0.1"
GPT2_FLAGS = f"{COMMON} --init-method-std 0.2"
LLAMA_FLAGS = (
    f"{COMMON} --init-method-std 0.2 --normalization RMSNorm --swiglu --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --disable-bias-linear --group-query-attention --num-query-groups 2 "
    "--ffn-hidden-size 48"
)


def gpt2_model() -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=61, n_positions=16, n_embd=32, n_layer=4, n_head=4, resid_pdrop=0, embd_pdrop=0,
                   attn_pdrop=0, attn_implementation="sdpa", bos_token_id=None, eos_token_id=None)
    )  # fmt: skip


def llama_model() -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
                    num_key_value_heads=2, max_position_embeddings=16, rms_norm_eps=1e-5, tie_word_embeddings=False,
                    rope_parameters={"rope_type": "default", "rope_theta": BASE}, attn_implementation="sdpa")
    )  # fmt: skip


def renamed(ours: Mapping[str, torch.Tensor], family: Family, config: ModelConfig) -> State:
    """Our weights under their names, by the table that conversions go by."""
    theirs: State = {}
    for name, links in by_theirs(family.links(config)).items():
        theirs[name] = torch.empty(links[0].theirs_shape, dtype=ours[links[0].ours].dtype)
        for link in links:
            part = ours[link.ours][link.ours_at.slices((0,) * len(link.ours_shape))]
            link.part_of_theirs(theirs[name]).copy_(part)
    if not config.untie_embeddings_and_output_weights:
        theirs[family.head] = theirs["transformer.wte.weight"]
    return theirs


def rms_norm_in_own_dtype(self: LlamaRMSNorm, x: torch.Tensor) -> torch.Tensor:
    return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)


def rotary_in_own_dtype(
    self: LlamaRotaryEmbedding, x: torch.Tensor, position_ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = BASE ** (-torch.arange(0, 8, 2, dtype=x.dtype) / 8)
    angles = torch.cat([position_ids[..., None].to(x.dtype) * frequencies] * 2, dim=-1)
    return angles.cos(), angles.sin()


def train_ours(flags: str) -> tuple[State, list[torch.Tensor], Curve]:
    """Initial weights, each step's token rows [8, 17], and what came of them."""
    run, state = start_rank(0, 1, flags)
    initial = whole_weights(run)
    batches, losses, norms = [], [], []
    for _ in range(STEPS):
        numbers = range(state.consumed_samples, state.consumed_samples + BATCH)
        batches.append(torch.stack([torch.from_numpy(run.data.datasets.train.sample(n).tokens) for n in numbers]))
        state, outcome = train_step(run, state)
        losses.append(outcome.loss)
        norms.append(outcome.grad_norm)
        assert outcome.lr == LR
    final = whole_weights(run)
    assert initial is not None and final is not None, "a single process has all weights"
    return initial, batches, Curve(losses, norms, {name: tensor.numpy() for name, tensor in final.items()})


def train_theirs(model: nn.Module, initial: State, batches: list[torch.Tensor]) -> Curve:
    """The same steps by the book: decay on matrices alone, clipping at 1.0."""
    model.load_state_dict(initial)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.999), eps=1e-8)
    losses, norms = [], []
    for rows in batches:
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return Curve(losses, norms, {name: tensor.numpy() for name, tensor in model.state_dict().items()})


FAMILIES: dict[str, tuple[str, Callable[[], nn.Module], Family]] = {
    "gpt2": (GPT2_FLAGS, gpt2_model, GPT2),
    "llama": (LLAMA_FLAGS, llama_model, LLAMA),
}


def compare(family: str, dtype: torch.dtype, precision: str) -> tuple[Curve, Curve]:
    """Our curve, its weights under their names, and theirs."""
    flags, build, kind = FAMILIES[family]
    config = replace(config_of(flags, 1).model, vocab_size=61)
    initial, batches, ours = train_ours(f"{flags} {precision}")
    final = renamed({name: torch.from_numpy(array) for name, array in ours.weights.items()}, kind, config)
    theirs = train_theirs(build().to(dtype), renamed(initial, kind, config), batches)
    assert min(theirs.norms) > 1.0, "clipping must bite, or the test says nothing of it"
    return Curve(ours.losses, ours.norms, {name: tensor.numpy() for name, tensor in final.items()}), theirs


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_in_float64(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlamaRMSNorm, "forward", rms_norm_in_own_dtype)
    monkeypatch.setattr(LlamaRotaryEmbedding, "forward", rotary_in_own_dtype)
    ours, theirs = compare(family, torch.float64, "--fp64")
    assert_equal(ours, theirs, curve_rtol=1e-8, weight_rtol=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_norms_equal_in_float32(family: str) -> None:
    ours, theirs = compare(family, torch.float32, "")
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-5)
    assert ours.norms == pytest.approx(theirs.norms, rel=1e-5)
