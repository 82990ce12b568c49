# SPDX-License-Identifier: Apache-2.0
"""Any layout from any layout, tensor by tensor and bit by bit; nothing half loaded, nothing left over."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint.choose import Source, choose
from megatron_core.checkpoint.directory import read_manifest, step_directory
from megatron_core.checkpoint.held import held_tensors
from megatron_core.checkpoint.load import load_tensors
from megatron_core.errors import CheckpointError
from tests.checkpoint.saved_run import fill_with_numbers, part, save_run
from tests.e2e.proof import FAMILIES, start_rank
from tests.rank_pool import run_ranks

GPT2, LLAMA, QK = (FAMILIES[name] for name in ("gpt2", "llama", "qk"))
TP2_PP2 = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
VPP = "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"
PADDED = "--make-vocab-size-divisible-by 128"
LAYOUTS = {
    "alone": (1, ""),
    "tp2": (2, "--tensor-model-parallel-size 2"),
    "vpp": (2, VPP),
    "tp2-pp2-padded": (4, f"{TP2_PP2} {PADDED}"),
    "dp2-sequence-parallel": (4, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "pp4": (4, "--pipeline-model-parallel-size 4 --pipeline-split cost"),
}


def save(rank: int, world_size: int, flags: str, root: Path, steps: list[int], with_optim: bool = True) -> None:
    run, state = start_rank(rank, world_size, flags)
    for step in steps:
        fill_with_numbers(run, salt=step)
        save_run(run, replace(state, step=step), root, with_optim=with_optim)


def load(rank: int, world_size: int, flags: str, root: Path, step: int | None = None, with_optim: bool = True) -> int:
    """Load and compare every element that the rank holds; the step that was loaded."""
    run, _ = start_rank(rank, world_size, flags)
    fill_with_numbers(run, salt=-1)
    chosen = choose(Source(root=root, step=step), run.ctx)
    assert chosen is not None
    held = held_tensors(run.reducer.buckets, run.optimizer, with_optim=with_optim)
    loaded = load_tensors(chosen, held, run.ctx, with_optim=with_optim)
    for tensor in held:
        assert torch.equal(tensor.values, part(tensor, loaded.step).to(tensor.values.dtype)), tensor.name
    for parameter in run.reducer.parameters:
        rows = parameter.spec.local_shape[0]
        assert not parameter.detach()[rows:].any(), f"{parameter.spec.name} has padding rows that are not zero"
    return loaded.step


@pytest.mark.parametrize("family", [f"{GPT2} --fp64", LLAMA, f"{QK} --bf16"], ids=["gpt2-64", "llama-32", "qk-bf16"])
@pytest.mark.parametrize("saved_at", ["vpp", "tp2-pp2-padded"])
def test_every_layout_loads_every_element(tmp_path: Path, family: str, saved_at: str) -> None:
    world_size, layout = LAYOUTS[saved_at]
    run_ranks(save, world_size, f"{family} {layout}", tmp_path, [3])
    for world_size, layout in LAYOUTS.values():
        assert run_ranks(load, world_size, f"{family} {layout}", tmp_path) == [3] * world_size, layout


def test_layers_are_where_their_numbers_are_at_any_interleaving(tmp_path: Path) -> None:
    """CKP-05: layer i holds i, whoever holds it; 8 layers as 2 stages of 2 chunks, of 4 chunks, of 1, and alone."""
    flags = f"{GPT2} --num-layers 8"
    two = "--pipeline-model-parallel-size 2"
    run_ranks(save_layer_numbers, 2, f"{flags} {VPP}", tmp_path)
    for world_size, layout in [(2, VPP), (2, two), (2, f"{two} --num-virtual-stages-per-pipeline-rank 4"), (1, "")]:
        found = run_ranks(layer_numbers, world_size, f"{flags} {layout}", tmp_path)
        assert {number for numbers in found for number in numbers} == {(i, float(i)) for i in range(8)}, layout
    assert {i for i, _ in run_ranks(layer_numbers, 2, f"{flags} {VPP}", tmp_path)[0]} == {0, 1, 4, 5}


def save_layer_numbers(rank: int, world_size: int, flags: str, root: Path) -> None:
    run, state = start_rank(rank, world_size, flags)
    for tensor in held_tensors(run.reducer.buckets, run.optimizer, with_optim=True):
        if tensor.name.startswith("model/layers."):
            tensor.values.fill_(float(tensor.name.split(".")[1]))
    save_run(run, state, root)


def layer_numbers(rank: int, world_size: int, flags: str, root: Path) -> set[tuple[int, float]]:
    run, _ = start_rank(rank, world_size, flags)
    held = held_tensors(run.reducer.buckets, run.optimizer, with_optim=False)
    chosen = choose(Source(root=root), run.ctx)
    assert chosen is not None
    load_tensors(chosen, held, run.ctx, with_optim=False)
    layers = [tensor for tensor in held if tensor.name.startswith("model/layers.")]
    return {(int(t.name.split(".")[1]), value) for t in layers for value in t.values.unique().tolist()}


@pytest.mark.parametrize(
    ("before", "after"), [("", "--bf16"), ("--bf16", ""), ("--fp16", "--bf16"), ("--fp64", "--fp16"), ("", "--fp64")]
)
def test_every_precision_loads_every_other(tmp_path: Path, before: str, after: str) -> None:
    """Always from the widest copy: fp32 weights of a bf16 run are its masters, bf16 weights are cast from them."""
    save(0, 1, f"{GPT2} {before}", tmp_path, [3])
    assert load(0, 1, f"{GPT2} {after}", tmp_path) == 3


def test_weights_alone_are_those_that_the_model_computed_with(tmp_path: Path) -> None:
    save(0, 1, f"{GPT2} --bf16", tmp_path, [3], with_optim=False)
    run, _ = start_rank(0, 1, GPT2)
    chosen = choose(Source(root=tmp_path), run.ctx)
    assert chosen is not None
    held = held_tensors(run.reducer.buckets, run.optimizer, with_optim=False)
    load_tensors(chosen, held, run.ctx, with_optim=False)
    assert all(torch.equal(tensor.values, part(tensor, 3).bfloat16().float()) for tensor in held)


def test_an_optimizer_that_was_not_saved_is_asked_for(tmp_path: Path) -> None:
    save(0, 1, GPT2, tmp_path, [3], with_optim=False)
    with pytest.raises(CheckpointError, match=r"step 3 holds no optimizer state .*--no-load-optim, or with"):
        load(0, 1, GPT2, tmp_path)
    assert load(0, 1, GPT2, tmp_path, with_optim=False) == 3


def mismatch(rank: int, world_size: int, flags: str, root: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(rank, world_size, flags, root)
    return str(caught.value)


def test_every_tensor_that_does_not_fit_is_named_on_every_rank(tmp_path: Path) -> None:
    """CKP-06: another MLP width, and biases more, on whichever stage or slice they lie."""
    save(0, 1, f"{LLAMA} --bf16", tmp_path, [3])
    found = run_ranks(mismatch, 4, f"{LLAMA} --bf16 {TP2_PP2} --ffn-hidden-size 64 --add-qkv-bias", tmp_path)
    first, *lines = found[0].splitlines()
    assert found == [found[0]] * 4
    assert first == "the checkpoint of step 3 does not fit this run: 64 tensors differ:"
    for section in ("model", "master", "adam_m", "adam_v"):
        for layer in range(4):
            name = f"  {section}/layers.{layer}"
            assert f"{name}.mlp.up.weight: shape (2, 48, 32) in the checkpoint, (2, 64, 32) in the run" in lines
            assert f"{name}.attention.q.bias: missing in the checkpoint; the run has shape (4, 8)" in lines
    assert any(line.startswith("  master/layers.0.mlp.up.weight: shape (2, 48, 32)") for line in lines)


@pytest.mark.parametrize(("before", "after"), [(GPT2, f"{GPT2} --untie-embeddings-and-output-weights"), (LLAMA, GPT2)])
def test_a_tied_head_is_not_taken_for_an_untied_one(tmp_path: Path, before: str, after: str) -> None:
    """CKP-08: a head that was not saved is not made of the embedding, nor is one that was saved left out."""
    save(0, 1, before, tmp_path, [3])
    said = mismatch(0, 1, after, tmp_path)
    where = "missing in the checkpoint" if before == GPT2 else "in the checkpoint, with shape (61, 32), but not in"
    assert f"model/head.weight: {where}" in said and "adam_v/head.weight" in said


def damage(root: Path, step: int, name: str) -> None:
    """Flip a byte in the middle of one tensor."""
    manifest = read_manifest(root, step)
    piece = next(entry.pieces[-1] for entry in manifest.tensors if entry.name == name)
    with (step_directory(root, step) / piece.file).open("r+b") as file:
        file.seek(piece.offset + piece.nbytes // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 16]))


def test_damage_that_one_rank_meets_makes_all_fall_back(tmp_path: Path) -> None:
    run_ranks(save, 4, f"{GPT2} {TP2_PP2}", tmp_path, [3, 5, 7])
    for step in (5, 7):
        damage(tmp_path, step, "adam_v/layers.3.mlp.down.weight")
    assert run_ranks(load, 4, f"{GPT2} {TP2_PP2}", tmp_path) == [3] * 4
    assert run_ranks(load, 2, f"{GPT2} --tensor-model-parallel-size 2", tmp_path) == [3] * 2


def test_damage_is_said_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(0, 1, GPT2, tmp_path, [3, 5])
    damage(tmp_path, 5, "model/final_norm.weight")
    with caplog.at_level("WARNING", "megatron_core"):
        assert load(0, 1, GPT2, tmp_path) == 3
    assert "the checkpoint of step 5 cannot be read: rank_00000.safetensors: damaged: block 0 of" in caplog.text
    assert "falling back to an older one" in caplog.text


def failure(rank: int, world_size: int, root: Path, step: int | None) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(rank, world_size, f"{GPT2} --pipeline-model-parallel-size 2", root, step)
    return str(caught.value)


def test_where_there_is_nothing_to_fall_back_to(tmp_path: Path) -> None:
    run_ranks(save, 2, f"{GPT2} --pipeline-model-parallel-size 2", tmp_path, [3, 5])
    damage(tmp_path, 5, "model/final_norm.weight")
    asked = run_ranks(failure, 2, tmp_path, 5)
    assert asked[0] == asked[1]
    assert "the checkpoint of step 5 cannot be read: [rank 1] rank_00001" in asked[0]
    assert asked[0].endswith("without --ckpt-step an older one would be taken")
    damage(tmp_path, 3, "model/final_norm.weight")
    none = run_ranks(failure, 2, tmp_path, None)
    assert none[0] == none[1]
    assert "step 3 cannot be read: [rank 1]" in none[0] and "holds no usable checkpoint: no older one" in none[0]


def test_a_disk_that_fails_counts_as_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(0, 1, GPT2, tmp_path, [3, 5])
    preadv = os.preadv

    def failing(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if "step_00000005" in os.readlink(f"/proc/self/fd/{descriptor}") and offset > 0:
            raise OSError(errno.EIO, "Input/output error")
        return preadv(descriptor, buffers, offset)

    run, _ = start_rank(0, 1, GPT2)
    chosen = choose(Source(root=tmp_path), run.ctx)
    assert chosen is not None and chosen.step == 5
    monkeypatch.setattr(os, "preadv", failing)
    held = held_tensors(run.reducer.buckets, run.optimizer, with_optim=True)
    assert load_tensors(chosen, held, run.ctx, with_optim=True).step == 3
