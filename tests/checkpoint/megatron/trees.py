# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as Megatron-LM leaves them, written from weights of ours by what its formats say and not by our code."""

import argparse
import enum
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed.checkpoint as dcp

from megatron_core.config.model import ModelConfig
from megatron_core.model.gpt import ChunkPlan
from megatron_core.tensor_parallel.shard_spec import spec_parameters
from tests.small_model import make_factory, make_model

Weights = Mapping[str, torch.Tensor]
Names = Literal["core", "te", "old", "oldest"]


class Backend(enum.Enum):
    """A class that no reader knows."""

    AUTO = 5


def weights(config: ModelConfig, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Other numbers in every element of every weight of ours."""
    torch.manual_seed(5)
    chunk = make_model(make_factory(config), ChunkPlan(range(config.num_layers)))
    return {p.spec.name: torch.randn(p.spec.shape).to(dtype) for p in spec_parameters(chunk)}


def arguments(config: ModelConfig, tp: int = 1, pp: int = 1, **others: Any) -> argparse.Namespace:
    """args, with what has nothing to do with the weights among them."""
    values = {
        name: getattr(config, name)
        for name in (
            *("num_layers", "hidden_size", "num_attention_heads", "seq_length", "max_position_embeddings", "swiglu"),
            *("group_query_attention", "num_query_groups", "make_vocab_size_divisible_by", "normalization"),
            *("norm_epsilon", "squared_relu", "position_embedding_type", "rotary_base", "rotary_percent"),
            *("add_bias_linear", "add_qkv_bias", "qk_layernorm", "untie_embeddings_and_output_weights"),
            *("hidden_dropout", "attention_dropout", "apply_query_key_layer_scaling", "init_method_std"),
        )
    }
    return argparse.Namespace(
        **values,
        ffn_hidden_size=config.ffn_size,
        kv_channels=config.head_dim,
        bias_gelu_fusion=config.activation == "gelu_tanh",
        padded_vocab_size=padded(config, tp),
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        params_dtype=torch.bfloat16,
        attention_backend=Backend.AUTO,
        num_experts=None,
        lr=1e-4,
        iteration=1000,
        **others,
    )


def padded(config: ModelConfig, tp: int) -> int:
    """Rows of the embedding."""
    multiple = config.make_vocab_size_divisible_by * tp
    return -(-config.vocabulary // multiple) * multiple


def qkv(ours: Weights, layer: int, kind: str, config: ModelConfig) -> torch.Tensor:
    """Rows group by group: queries, key, value."""
    q, kv = (ours[f"layers.{layer}.attention.{name}.{kind}"] for name in ("q", "kv"))
    a, g = config.num_attention_heads, config.query_groups
    rows = []
    for group in range(g):
        rows += [q[head] for head in range(group * a // g, (group + 1) * a // g)]
        rows += [kv[group, 0], kv[group, 1]]
    return torch.cat(rows)


def old_qkv(ours: Weights, layer: int, kind: str, config: ModelConfig, version: int, tp: int) -> list[torch.Tensor]:
    """Shards of versions 0 and 1."""
    q, kv = (ours[f"layers.{layer}.attention.{name}.{kind}"] for name in ("q", "kv"))
    heads = config.num_attention_heads // tp
    shards = []
    for rank in range(tp):
        mine = slice(rank * heads, (rank + 1) * heads)
        three = torch.stack([q[mine], kv[mine, 0], kv[mine, 1]])  # [3, heads, d, ...]
        if version == 1:
            three = three.movedim(0, 2)  # [heads, d, 3, ...]
        shards.append(three.reshape(-1, *three.shape[3:]).contiguous())
    return shards


def table(ours: Weights, name: str, rows: int) -> torch.Tensor:
    """A vocabulary's table with padding, which is trained there."""
    whole = torch.full((rows, ours[name].shape[1]), 7.0, dtype=ours[name].dtype)
    whole[: ours[name].shape[0]] = ours[name]
    return whole


def layer_shards(
    ours: Weights, layer: int, config: ModelConfig, tp: int, version: int = 3
) -> dict[str, list[torch.Tensor]]:
    """Megatron core's name within a layer -> each tensor-parallel rank's shard."""
    found: dict[str, list[torch.Tensor]] = {}

    def put(theirs: str, ours_name: str, cut: int | None, shape: tuple[int, ...] | None = None) -> None:
        for kind in ("weight", "bias"):
            whole = ours.get(f"layers.{layer}.{ours_name}.{kind}")
            if whole is None:
                continue
            matrix = whole.reshape(shape) if shape is not None and kind == "weight" else whole
            cuts = cut is not None and (kind == "weight" or cut == 0)
            shards = matrix.chunk(tp, dim=cut) if cuts and cut is not None else [matrix] * tp
            found[f"{theirs}.{kind}"] = [shard.contiguous() for shard in shards]

    put("input_layernorm", "attention_norm", None)
    put("pre_mlp_layernorm", "mlp_norm", None)
    put("self_attention.q_layernorm", "attention.q_norm", None)
    put("self_attention.k_layernorm", "attention.k_norm", None)
    put("self_attention.linear_proj", "attention.output", 1, (config.hidden_size, -1))
    put("mlp.linear_fc2", "mlp.down", 1)
    put("mlp.linear_fc1", "mlp.up", 0)
    if config.swiglu:
        for kind in ("weight", "bias"):
            if f"layers.{layer}.mlp.up.{kind}" in ours:
                gate, up = ours[f"layers.{layer}.mlp.up.{kind}"]
                found[f"mlp.linear_fc1.{kind}"] = [torch.cat(pair) for pair in zip(gate.chunk(tp), up.chunk(tp))]
    for kind in ("weight", "bias"):
        if f"layers.{layer}.attention.q.{kind}" in ours:
            whole = qkv(ours, layer, kind, config)
            shards = [part.contiguous() for part in whole.chunk(tp)]
            if version < 2:
                shards = old_qkv(ours, layer, kind, config, version, tp)
            found[f"self_attention.linear_qkv.{kind}"] = shards
    return found


_OLD = {
    "self_attention.linear_qkv": "self_attention.query_key_value",
    "self_attention.linear_proj": "self_attention.dense",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "mlp.linear_fc1": "mlp.dense_h_to_4h",
    "mlp.linear_fc2": "mlp.dense_4h_to_h",
}


def layer_name(names: Names, local: int, name: str) -> str:
    """What a layer's tensor is called."""
    base, _, kind = name.rpartition(".")
    if names == "te":
        te = {
            "input_layernorm": "self_attention.linear_qkv.layer_norm",
            "pre_mlp_layernorm": "mlp.linear_fc1.layer_norm",
        }
        return f"decoder.layers.{local}.{te[base]}_{kind}" if base in te else f"decoder.layers.{local}.{name}"
    if names == "core":
        return f"decoder.layers.{local}.{name}"
    old = f"layers.{local}.{_OLD.get(base, base)}.{kind}"
    return old.replace("self_attention", "attention") if names == "oldest" else old


def chunk_weights(
    ours: Weights,
    config: ModelConfig,
    layers: range,
    rank: int,
    tp: int,
    *,
    first: bool,
    last: bool,
    names: Names,
    version: int,
) -> dict[str, Any]:
    """The state of one chunk on one rank."""
    rows = padded(config, tp)
    body: dict[str, Any] = {}
    for local, layer in enumerate(layers):
        for name, shards in layer_shards(ours, layer, config, tp, version).items():
            body[layer_name(names, local, name)] = shards[rank]
    if last:
        for kind in ("weight", "bias"):
            if f"final_norm.{kind}" in ours:
                prefix = "decoder." if names in ("core", "te") else ""
                body[f"{prefix}final_layernorm.{kind}"] = ours[f"final_norm.{kind}"]
    embedding: dict[str, Any] = {}
    if first:
        embedding["word_embeddings"] = {"weight": table(ours, "embedding.tokens.weight", rows).chunk(tp)[rank].clone()}
        if "embedding.positions.weight" in ours:
            embedding["position_embeddings"] = {"weight": ours["embedding.positions.weight"]}
    untied = config.untie_embeddings_and_output_weights
    head = table(ours, "head.weight" if untied else "embedding.tokens.weight", rows).chunk(tp)[rank].clone()
    has_head = last and (untied or not first)
    if names in ("core", "te"):
        flat = {f"embedding.{key}.weight": value["weight"] for key, value in embedding.items()}
        extra = {"decoder.layers.0.self_attention.core_attention._extra_state": None} if names == "te" else {}
        return {**flat, **body, **extra, **({"output_layer.weight": head} if has_head else {})}
    model: dict[str, Any] = {"transformer" if names == "oldest" else "encoder": body}
    model.update({"embedding": embedding} if first else {})
    model.update({"output_layer": {"weight": head}} if has_head and untied else {})
    tied = {"word_embeddings_for_head": {"weight": head}} if has_head and not untied else {}
    return {"language_model": model, **tied}


def write_legacy(
    save: Path,
    ours: Weights,
    config: ModelConfig,
    *,
    tp: int = 1,
    pp: int = 1,
    vpp: int = 1,
    names: Names = "core",
    version: int = 3,
    zipped: bool = True,
    **others: Any,
) -> Path:
    """A tree of one iteration with its tracker; returns the iteration's directory."""
    per = config.num_layers // (pp * vpp)
    directory = save / "iter_0001000"
    for p in range(pp):
        for rank in range(tp):
            folder = directory / (f"mp_rank_{rank:02d}_{p:03d}" if pp > 1 else f"mp_rank_{rank:02d}")
            folder.mkdir(parents=True)
            state: dict[str, Any] = {
                "args": arguments(config, tp, pp, **others),
                "iteration": 1000,
                "optimizer": {"state": {0: torch.randn(3)}},
                "rng_state": [{"cuda_rng_state": torch.get_rng_state()}],
            }
            if version:
                state["checkpoint_version"] = float(version)
            for chunk in range(vpp):
                k = chunk * pp + p
                state["model" if vpp == 1 else f"model{chunk}"] = chunk_weights(
                    ours,
                    config,
                    range(k * per, (k + 1) * per),
                    rank,
                    tp,
                    first=k == 0,
                    last=k == pp * vpp - 1,
                    names=names,
                    version=version,
                )
            torch.save(state, folder / "model_optim_rng.pt", _use_new_zipfile_serialization=zipped)
    (save / "latest_checkpointed_iteration.txt").write_text("1000")
    return directory


def torch_dist_tensors(ours: Weights, config: ModelConfig, *, stacked: bool = True) -> dict[str, torch.Tensor]:
    """What a torch_dist checkpoint holds by name, whole, with Transformer Engine's names."""
    layers = [layer_shards(ours, layer, config, 1) for layer in range(config.num_layers)]
    saved = {"optimizer.state.exp_avg.decoder.layers.0.x": torch.randn(3)}
    for name in layers[0]:
        whole = [layer[name][0] for layer in layers]
        if stacked:
            saved[layer_name("te", 0, name).replace("layers.0.", "layers.")] = torch.stack(whole)
        else:
            saved.update({layer_name("te", number, name): tensor for number, tensor in enumerate(whole)})
    rows = padded(config, 1)
    saved["embedding.word_embeddings.weight"] = table(ours, "embedding.tokens.weight", rows)
    for theirs, name in (
        ("embedding.position_embeddings.weight", "embedding.positions.weight"),
        ("decoder.final_layernorm.weight", "final_norm.weight"),
        ("decoder.final_layernorm.bias", "final_norm.bias"),
    ):
        saved.update({theirs: ours[name]} if name in ours else {})
    if config.untie_embeddings_and_output_weights:
        saved["output_layer.weight"] = table(ours, "head.weight", rows)
    return saved


def write_torch_dist(save: Path, ours: Weights, config: ModelConfig, *, stacked: bool = True, common: bool) -> Path:
    """A torch_dist tree of one process, written by PyTorch's own distributed checkpointing."""
    directory = save / "iter_0001000"
    saved: dict[str, Any] = {**torch_dist_tensors(ours, config, stacked=stacked)}
    state = {"args": arguments(config), "iteration": 1000, "checkpoint_version": 3.0}
    if not common:
        saved["common_state/shard_0_1"] = [state]  # becomes a file of torch.save, as there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
        dcp.save(saved, checkpoint_id=str(directory), planner=planner, no_dist=True)
    if common:
        torch.save(state, directory / "common.pt")
    finish_torch_dist(directory)
    return directory


def finish_torch_dist(directory: Path) -> None:
    """What is written last."""
    sign = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}
    (directory / "metadata.json").write_text(json.dumps(sign))
    (directory.parent / "latest_checkpointed_iteration.txt").write_text("1000")
