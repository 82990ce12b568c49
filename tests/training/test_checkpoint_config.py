# SPDX-License-Identifier: Apache-2.0
"""What may change when a run goes on from a checkpoint, and what is said of it."""

from dataclasses import replace

import pytest

from megatron_core.config.run import RunConfig
from megatron_core.errors import ConfigError
from megatron_core.training.checkpoint_config import (
    Reconciled,
    model_arguments,
    reconcile,
)
from tests.e2e.proof import FAMILIES, config_of

GPT2, LLAMA = FAMILIES["gpt2"], FAMILIES["llama"]
COSINE = f"{GPT2} --lr-decay-style cosine"
OVERRIDE, USE = "--override-opt-param-scheduler", "--use-checkpoint-opt-param-scheduler"


def config(flags: str, world_size: int = 1) -> RunConfig:
    return config_of(f"{flags} --load here", world_size)


def resumed(saved: str, now: str, seed: int = 1234) -> Reconciled:
    return reconcile(config(now), config(saved), step=10, seed=seed)


def refusal(saved: str, now: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resumed(saved, now)
    return str(caught.value)


@pytest.mark.parametrize("flags", FAMILIES.values())
def test_a_config_that_did_not_change(flags: str) -> None:
    assert resumed(flags, flags) == Reconciled(config=config(flags), warnings=(), layout=None)


def test_another_model_is_refused_with_all_that_differs() -> None:
    lines = refusal(GPT2, f"{GPT2} --num-layers 2 --normalization RMSNorm --norm-epsilon 1e-6").splitlines()
    assert lines == [
        "the checkpoint of step 10 was trained as another model: 3 fields differ:",
        "  num_layers: 4 in the checkpoint, 2 in this run",
        "  normalization: LayerNorm in the checkpoint, RMSNorm in this run",
        "  norm_epsilon: 1e-05 in the checkpoint, 1e-06 in this run",
        "  Remedy: give the checkpoint's values (--use-checkpoint-args takes them), or load weights alone with "
        "--finetune.",
    ]


def test_finetuning_another_model_is_only_said() -> None:
    """Whether its tensors fit is seen when they are loaded."""
    found = resumed(GPT2, f"{GPT2} --norm-epsilon 1e-6 --finetune --lr 1 --clip-grad 3 --seed 5", seed=9)
    assert found.warnings == ("norm_epsilon: 1e-05 in the checkpoint, 1e-06 in this run",)
    assert found.config.training.seed == 5


def test_the_vocabulary_counts_where_both_know_it() -> None:
    assert "vocab_size: 61 in the checkpoint, 60 in this run" in refusal(GPT2, GPT2.replace("61", "60"))
    unknown = config(GPT2)
    unknown = replace(unknown, model=replace(unknown.model, vocab_size=None))
    assert reconcile(unknown, config(GPT2), step=10, seed=1234).warnings == ()


def test_another_schedule_needs_a_word() -> None:
    now = f"{COSINE} --lr 2e-3 --adam-beta2 0.95 --weight-decay 0.1"
    lines = refusal(COSINE, now).splitlines()
    assert lines[:4] == [
        "the checkpoint of step 10 was trained under another schedule: 3 fields differ:",
        "  lr: 0.001 in the checkpoint, 0.002 in this run",
        "  adam_beta2: 0.999 in the checkpoint, 0.95 in this run",
        "  weight_decay: 0.01 in the checkpoint, 0.1 in this run",
    ]
    assert lines[4] == (
        "  Remedy: --override-opt-param-scheduler takes this run's values, --use-checkpoint-opt-param-scheduler the "
        "checkpoint's."
    )
    kept = resumed(COSINE, f"{now} {OVERRIDE}")
    assert kept.config == config(f"{now} {OVERRIDE}")
    assert (
        kept.warnings[0] == "lr: 0.001 in the checkpoint, 0.002 in this run; this run's counts"
        and len(kept.warnings) == 3
    )
    taken = resumed(COSINE, f"{now} {USE}")
    assert taken.config.optim == config(COSINE).optim
    assert taken.warnings[0] == "lr: 0.001 in the checkpoint, 0.002 in this run; the checkpoint's counts"


def test_a_longer_run_is_told_how_its_decay_is_meant() -> None:
    said = refusal(COSINE, f"{COSINE} --train-iters 20")
    assert "under another schedule: lr_decay_iters: 10 in the checkpoint, 20 in this run. Remedy: --override" in said
    assert said.endswith(
        "--train-iters 20 without --lr-decay-iters stretches the decay to the new end, --lr-decay-iters 10 keeps it."
    )
    longer = f"{COSINE} --train-iters 20 --lr-decay-iters 10"
    assert resumed(COSINE, longer).config == config(longer)
    assert resumed(COSINE, f"{COSINE} --train-iters 20 {USE}").config.optim.lr_decay_iters == 10
    assert resumed(GPT2, f"{GPT2} --train-iters 20").warnings == (), "a constant rate has no end"


def test_the_ramp_of_weight_decay_ends_with_the_run() -> None:
    flags = f"{GPT2} --weight-decay-incr-style linear --start-weight-decay 0 --end-weight-decay 0.1"
    assert "train_iters: 10 in the checkpoint, 20 in this run" in refusal(flags, f"{flags} --train-iters 20")


def test_a_schedule_in_samples_cannot_be_taken_for_steps() -> None:
    saved = config(COSINE)
    saved = replace(saved, training=replace(saved.training, train_iters=None, train_samples=80))
    with pytest.raises(ConfigError, match=r"one of checkpoint and run counts in --train-iters, the other in --train-s"):
        reconcile(config(f"{COSINE} {USE}"), saved, step=10, seed=1234)


def test_a_new_optimizer_may_have_any_schedule() -> None:
    assert resumed(COSINE, f"{COSINE} --lr 1 --no-load-optim").warnings == ()


def test_everything_that_must_not_differ_is_said_at_once() -> None:
    assert refusal(COSINE, f"{COSINE} --lr 1 --num-layers 2").count("the checkpoint of step 10 was trained") == 2


def test_data_and_recipe_may_change_but_not_silently() -> None:
    """DAT-04: another blend goes on with a line for each change."""
    blend = GPT2.replace("--mock-data", "--tokenizer-type NullTokenizer")
    changed = f"{blend} --data-path 2 a 8 b --split 99,1,0 --hidden-dropout 0.1 --global-batch-size 4"
    warnings = resumed(f"{blend} --data-path 1 a 9 b", changed).warnings
    assert warnings == (
        "hidden_dropout: 0.0 in the checkpoint, 0.1 in this run",
        "data_path: 1 a 9 b in the checkpoint, 2 a 8 b in this run",
        "split: 969,30,1 in the checkpoint, 99,1,0 in this run",
        "global_batch_size: 8 in the checkpoint, 4 in this run",
    )


def test_layout_and_precision_are_one_line() -> None:
    layout = "--tensor-model-parallel-size 2 --bf16 --ddp-bucket-size 7 --micro-batch-size 2 --log-interval 3"
    found = reconcile(config(f"{GPT2} {layout}", 4), config(GPT2), step=10, seed=1234)
    assert found.layout == "saved in fp32 at tp 1 x pp 1, goes on in bf16 at tp 2 x pp 1"


def test_the_seed_is_the_checkpoint_s() -> None:
    found = resumed(GPT2, f"{GPT2} --seed 5", seed=9)
    assert found.config.training.seed == 9
    assert found.warnings == ("seed: 9 as in the checkpoint, not 5; --no-load-rng takes this run's",)
    own = resumed(GPT2, f"{GPT2} --seed 5 --no-load-rng", seed=9)
    assert (own.config.training.seed, own.warnings) == (5, ())


def test_the_model_as_flags_would_give_it() -> None:
    saved = config(LLAMA)
    taken = model_arguments(saved)
    assert (taken["num_query_groups"], taken["swiglu"], taken["seq_length"], taken["vocab_size"]) == (2, True, 16, 61)
    assert not taken.keys() & {"make_vocab_size_divisible_by", "padded_vocab_size", "init_method_std"}
    assert replace(config(GPT2).model, **taken) == saved.model  # type: ignore[arg-type]
    unknown = replace(saved, model=replace(saved.model, vocab_size=None))
    assert taken.keys() - model_arguments(unknown).keys() == {"vocab_size"}
