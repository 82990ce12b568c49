# SPDX-License-Identifier: Apache-2.0
"""Public cases of checkpoints and of going on from them, in whole runs: what is said, what is kept, what follows."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from megatron_core.checkpoint.directory import prepare, read_manifest, steps_present
from megatron_core.data.indexed_writer import IndexedWriter
from megatron_core.training.pretrain import pretrain
from tests.e2e.proof import FAMILIES, NO_DROPOUT, run_whole, start_rank
from tests.e2e.run_folder import assert_same_end, columns, curve, saved_tensors
from tests.e2e.test_command_line import MOCK, ending
from tests.rank_pool import run_ranks

pytestmark = pytest.mark.usefixtures("one_thread")

GPT2 = f"{FAMILIES['gpt2']} --num-layers 1 --micro-batch-size 4 --global-batch-size 4"
TP2, PP2 = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"


def train(flags: str) -> int:
    """The exit code of a run of one process."""
    return pretrain(flags.split(), time.monotonic())


def refusal(flags: str, capfd: pytest.CaptureFixture[str]) -> str:
    """What a run says that is refused for its input, by one rank and without a traceback."""
    capfd.readouterr()
    assert train(flags) == 2
    said = "".join(capfd.readouterr())
    assert "Traceback" not in said
    return said.splitlines()[-1] if said.count("\n") == 1 else said


@pytest.mark.parametrize("tracker", ["999", "", "no number"])
def test_ckp_02_a_tracker_of_megatron_is_no_empty_directory(
    tracker: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text(tracker)
    said = refusal(f"{MOCK} --load {tmp_path} --save {tmp_path}", capfd)
    assert str(tmp_path) in said and "a Megatron-LM checkpoint" in said
    assert steps_present(tmp_path) == []


def test_ckp_02_a_step_that_is_not_there_ends_the_start_with_those_that_are(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor do unfinished saves count; only an empty directory starts a new run, which says so."""
    saved, empty, unfinished = tmp_path / "saved", tmp_path / "empty", tmp_path / "unfinished"
    assert train(f"{MOCK} --load {empty} --save {saved} --save-interval 2") == 0
    assert f"--load {empty} holds no checkpoint: starting new" in "".join(capfd.readouterr())
    said = refusal(f"{MOCK} --load {saved} --save {tmp_path / 'a'} --ckpt-step 7", capfd)
    assert f"{saved / 'step_00000007'} does not exist" in said and "usable steps" in said and ": 2, 4" in said
    assert "no checkpoint" in refusal(f"{MOCK} --load {empty} --exit-on-missing-checkpoint", capfd)
    prepare(unfinished, 5)
    assert "no usable checkpoint" in refusal(f"{MOCK} --load {unfinished} --save {tmp_path / 'a'}", capfd)
    assert not (tmp_path / "a").exists(), "a run that is refused leaves nothing"


def test_ckp_03_the_last_two_by_number(tmp_path: Path) -> None:
    """Saved at 90, 100 and 110, of which 90 sorts last by name."""
    flags = f"{MOCK} --num-layers 1 --train-iters 110 --log-interval 100 --save {tmp_path} --save-interval 10"
    assert train(f"{flags} --most-recent-k 2") == 0
    assert steps_present(tmp_path) == [100, 110]


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """A write beyond `size` bytes fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("policy", "ends"), [("", {6}), ("--stop-on-save-failure", {3, 4, 5})], ids=["go-on", "stop"])
@pytest.mark.parametrize("how", ["", "--no-async-save"], ids=["behind", "at-once"])
def test_ckp_03_a_save_that_fails_costs_no_older_checkpoint(
    how: str, policy: str, ends: set[int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Keeping one: that of step 2 outlives all that cannot be written after it, and the next run starts there."""
    flags = f"{MOCK} --train-iters 6 --save {tmp_path} --load {tmp_path} --save-interval 1 --most-recent-k 1 {how}"
    assert train(f"{flags} --exit-interval 2") == 0
    kept = next((tmp_path / "step_00000002").glob("*.safetensors")).stat().st_size
    with files_no_larger_than(kept // 2):
        assert train(f"{flags} {policy}") == 1
    said = "".join(capfd.readouterr())
    assert "the checkpoint of step 3 was not saved: " in said and "File too large" in said
    assert ending(tmp_path)["step"] in ends  # behind training, the failure of step 3 is known when step 5 begins
    assert steps_present(tmp_path) == [2] and ending(tmp_path)["checkpoint_step"] == 2
    assert train(flags) == 0
    straight = tmp_path / "straight"
    assert train(f"{MOCK} --train-iters 6 --save {straight}") == 0
    assert steps_present(tmp_path) == [6]
    assert_same_end(tmp_path, straight, 6)


def test_ckp_06_all_that_does_not_fit_is_named_before_anything_is_trained(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(f"{MOCK} --save {tmp_path / 'saved'}") == 0
    other = f"{MOCK} --load {tmp_path / 'saved'} --save {tmp_path / 'other'} --ffn-hidden-size 24 --add-qkv-bias"
    said = refusal(f"{other} --disable-bias-linear", capfd)
    for field in ("ffn_hidden_size: 64 in the checkpoint, 24 in this run", "add_qkv_bias: ", "add_bias_linear: "):
        assert field in said
    said = refusal(f"{other} --disable-bias-linear --finetune", capfd)
    for layer in range(2):
        mlp = f"model/layers.{layer}.mlp"
        assert f"{mlp}.up.weight: shape (64, 16) in the checkpoint, (24, 16) in the run" in said
        assert f"{mlp}.down.bias: in the checkpoint, with shape (16,), but not in the run" in said
    assert steps_present(tmp_path / "other") == []


def tables(rank: int, world_size: int, flags: str) -> list[torch.Tensor]:
    """The word embedding and the head that this rank holds after loading; one table where they are one storage."""
    run, _ = start_rank(rank, world_size, flags)
    run.source.close()
    found = {p.spec.name: p.detach().clone() for bucket in run.reducer.buckets for p in bucket.parameters}
    return [table for name, table in found.items() if name in ("embedding.tokens.weight", "head.weight")]


@pytest.mark.parametrize("layout", [TP2, PP2], ids=["tp2", "pp2"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_ckp_08_a_head_is_saved_as_it_is_stored(tied: bool, layout: str, tmp_path: Path) -> None:
    """After 10 steps tied copies are equal and untied ones are not; the loss after a restart is the straight run's."""
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    flags = f"{GPT2} --num-layers 2 --train-iters 11 {layout} {'' if tied else '--untie-embeddings-and-output-weights'}"
    run_whole(2, f"{flags} --save {straight} --save-interval 10")
    load = f"{flags} --load {straight} --ckpt-step 10"
    held = run_ranks(tables, 2, load)
    embedding, head = held[0][0], held[0 if layout == TP2 else 1][-1]
    assert torch.equal(embedding, head) == tied
    assert ("head.weight" in saved_tensors(straight, 10, "model")) == (not tied)
    run_whole(2, f"{load} --save {resumed}")
    assert curve(resumed) == curve(straight, after=10)


def one_sample(folder: Path) -> str:
    """Flags of a set whose samples are all the same one."""
    with IndexedWriter(str(folder / "one"), np.dtype(np.uint16)) as writer:
        writer.add_document(np.random.default_rng(5).integers(0, 63, 17))
    return f"--data-path {folder / 'one'} --split 100,0,0 --tokenizer-type NullTokenizer --vocab-size 63 {NO_DROPOUT}"


@pytest.mark.parametrize(
    ("precision", "layout"),
    [("--bf16", PP2), ("--fp16 --initial-loss-scale 1024", PP2), ("--bf16", "--use-distributed-optimizer")],
)
def test_res_05_the_first_steps_of_finetuning_stay_at_the_checkpoint(
    precision: str, layout: str, tmp_path: Path
) -> None:
    """20 steps on one sample at tp 2, two elsewhere and a rate that moves nothing: the same loss, the same weights."""
    flags = f"{one_sample(tmp_path)} --num-layers 2 --micro-batch-size 2 --global-batch-size 4 {precision}"
    saved, tuned = tmp_path / "saved", tmp_path / "tuned"
    run_whole(2, f"{flags} {TP2} --train-iters 20 --lr 1e-2 --save {saved}")
    run_whole(2, f"{flags} {layout} --train-iters 2 --lr 1e-30 --load {saved} --finetune --save {tuned}")
    trained = columns(saved, "loss")
    (first,), (second,) = columns(tuned, "loss").values()
    assert first == second < 0.5 * trained[1][0], "the model must have learned and still know it"
    before, after = saved_tensors(saved, 20, "model"), saved_tensors(tuned, 2, "model")
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    for name, master in saved_tensors(tuned, 2, "master").items():
        assert torch.equal(master.to(before[name].dtype), before[name])
    state = read_manifest(tuned, 2).state
    assert (state["step"], state["consumed_samples"], state["applied_steps"]) == (2, 8, 2)


def blend(folder: Path) -> str:
    """Two sets of 20 samples that share no token; {} stands for the weights."""
    for number, name in enumerate("ab"):
        with IndexedWriter(str(folder / name), np.dtype(np.uint16)) as writer:
            writer.add_document(np.random.default_rng(number).integers(30 * number, 30 * number + 30, 20 * 8 + 1))
    trained = MOCK.replace("--mock-data --vocab-size 32", "--tokenizer-type NullTokenizer --vocab-size 63")
    return f"{trained} --split 100,0,0 --data-path {{}} {folder / 'a'} {{}} {folder / 'b'}"


def test_dat_04_a_blend_that_changes_on_resume_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """At sample 48 of 100, from 0.3 and 0.7 to 0.5 and 0.5; the same blend goes on without a word."""
    flags = f"{blend(tmp_path)} --train-iters 25"
    before, saved = flags.format(0.3, 0.7), tmp_path / "saved"
    assert train(f"{before} --save {saved} --exit-interval 12") == 0
    for name, now in (("same", before), ("changed", flags.format(0.5, 0.5))):
        capfd.readouterr()
        assert train(f"{now} --load {saved} --save {tmp_path / name}") == 0
        said = [line for line in "".join(capfd.readouterr()).splitlines() if "in the checkpoint" in line]
        if name == "changed":
            assert len(said) == 1
            assert f"data_path: 0.3 {tmp_path}/a 0.7 {tmp_path}/b in the checkpoint, 0.5 {tmp_path}/a 0.5" in said[0]
        else:
            assert said == []
        assert list(columns(tmp_path / name, "consumed_samples").values())[-1] == (100,)
    assert columns(tmp_path / "same", "loss") != columns(tmp_path / "changed", "loss")


def test_which_schedule_counts_on_resume(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """--lr twice as high is refused; one switch takes it from here on, the other keeps the checkpoint's."""
    flags = f"{GPT2} --lr-decay-style cosine --lr 1e-3 --min-lr 1e-4"
    straight, double = tmp_path / "straight", tmp_path / "double"
    run_whole(1, f"{flags} --save {straight} --save-interval 5")
    run_whole(1, f"{flags} --lr 2e-3 --save {double}")
    for switch, expected in [("override", double), ("use-checkpoint", straight)]:
        save = tmp_path / switch
        again = f"{flags} --lr 2e-3 --load {straight} --ckpt-step 5 --save {save} --{switch}-opt-param-scheduler"
        run_whole(1, again)
        assert columns(save, "lr") == {step: lr for step, lr in columns(expected, "lr").items() if step > 5}
    assert_same_end(tmp_path / "use-checkpoint", straight, 10)
    with pytest.raises(AssertionError, match=r"under another schedule: lr: 0\.001 in the checkpoint, 0\.002 in this"):
        run_whole(1, f"{flags} --lr 2e-3 --load {straight} --ckpt-step 5")


def test_the_shape_of_the_model_comes_from_the_checkpoint(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """--use-checkpoint-args: nothing of the model need be given again; what is given otherwise is not taken."""
    rest = MOCK[MOCK.index("--micro-batch-size") :].replace("--mock-data --vocab-size 32", "")
    data = one_sample(tmp_path).replace("--vocab-size 63", "")
    model = "--num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16"
    rare = "--swiglu --ffn-hidden-size 40 --normalization RMSNorm --untie-embeddings-and-output-weights --vocab-size 63"
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    assert train(f"{rest} {data} {model} {rare} --save {straight} --save-interval 2") == 0
    capfd.readouterr()
    load = f"--load {straight} --ckpt-step 2 --use-checkpoint-args"
    assert train(f"{rest} {data} {load} --num-layers 3 --save {resumed}") == 0
    assert "--num-layers 2 instead of 3" in "".join(capfd.readouterr())
    assert curve(resumed) == curve(straight, after=2)
    assert_same_end(resumed, straight, 4)
