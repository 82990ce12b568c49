# SPDX-License-Identifier: Apache-2.0
import shlex

import pytest

from megatron_core.config.arguments import split_arguments
from megatron_core.config.fields import all_fields
from megatron_core.config.megatron_flags.table import flag_table
from megatron_core.config.translate import translate


def told(line):
    return translate(split_arguments(shlex.split(line)), all_fields(), flag_table())


def values(line):
    result = told(line)
    assert result.problems == ()
    return {field.name: value for field, value in result.values.items()}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--hidden_size 64", {"hidden_size": 64}),
        ("--hidden-size=64 --hidden-size 32", {"hidden_size": 32}),
        ("--disable-bias-linear", {"add_bias_linear": False}),
        ("--no-check-for-nan-in-loss-and-grad", {"check_for_nan_in_loss_and_grad": False}),
        ("--layernorm-epsilon 1e-6", {"norm_epsilon": 1e-6}),
        ("--use-rotary-position-embeddings", {"position_embedding_type": "rope"}),
        ("--num-key-value-heads 4", {"group_query_attention": True, "num_query_groups": 4}),
        ("--no-query-key-layer-scaling", {"apply_query_key_layer_scaling": False}),
        ("--tokenizer-type PretrainedFromHF", {"tokenizer_type": "HuggingFaceTokenizer"}),
        ("--profile-ranks 0 1", {"profile_ranks": (0, 1)}),
        ("--no-async-save --no-save-optim", {"async_save": False, "save_optim": False}),
        ("--persistent-save-interval 10", {"save_interval": 10}),
        ("--override-lr-scheduler", {"override_opt_param_scheduler": True}),
        ("--override-opt_param-scheduler", {"override_opt_param_scheduler": True}),
        ("--skip-train-iteration-range 40701-40900 7-9", {"iterations_to_skip": ("40701-40900", "7-9")}),
        ("--kill-switch-file stop", {"kill_switch_path": "stop"}),
        ("--exit-signal-handler-for-training --exit-signal SIGTERM", {"exit_signal_handler": True}),
        ("--check-for-spiky-loss", {"loss_spike_policy": "stop", "loss_spike_factor": 10.0}),
        ("--ckpt-format torch_dist --dist-ckpt-strictness assume_ok_unexpected --no-save-rng", {}),
        # The unfused GELU of Megatron is the exact one, unless the tanh form is asked for as well.
        ("--no-bias-gelu-fusion", {"gelu": "exact"}),
        ("--no-bias-gelu-fusion --openai-gelu", {"gelu": "tanh"}),
        ("--no-position-embedding", {"position_embedding_type": "none"}),
        ("--recompute-activations", {"recompute_granularity": "selective"}),
        ("--recompute-modules core_attn mlp", {"recompute_modules": ("core_attn", "mlp")}),
        ("--cpu-optimizer --optimizer-offload-fraction 1.0", {"optimizer_cpu_offload": True}),
        ("--checkpoint-activations", {"recompute_granularity": "full"}),
        (
            "--checkpoint-activations --checkpoint-num-layers 2 --deepspeed-activation-checkpointing",
            {"recompute_granularity": "full", "recompute_num_layers": 2},
        ),
        ("--checkpoint-activations --recompute-granularity selective", {"recompute_granularity": "selective"}),
        ("--no-position-embedding --position-embedding-type rope", {"position_embedding_type": "rope"}),
        ("--use-rotary-position-embeddings --no-position-embedding", {"position_embedding_type": "rope"}),
    ],
)
def test_flags_become_fields(line, expected):
    assert values(line) == expected


def test_what_has_no_effect_is_said_in_one_line():
    result = told(
        "--no-rope-fusion --data-impl mmap --no-rope-fusion --attention-backend flash --layernorm-epsilon 1e-6"
    )
    assert result.problems == ()
    assert result.notes == (
        "read as ours: --layernorm-epsilon as --norm-epsilon",
        "accepted without effect (docs/configuration.md says why): "
        "--no-rope-fusion, --data-impl mmap, --attention-backend",
    )


def test_all_that_is_wrong_is_collected():
    result = told(
        "--num-experts 8 --offload-modules --moe-router-topk 2 --checkpoint-in-cpu --lrr 1 --lr fast "
        "--yaml-cfg a --position-embedding-type yarn --offload-modules --bf16 yes"
    )
    assert result.problems == (
        "--lr is 'fast', not a number",
        "--bf16 is a switch and takes no value; its opposite starts with --no-",
        "unknown flag --lrr; did you mean --lr?",
        "--num-experts, --moe-router-topk: mixture-of-experts layers are not part of this framework: "
        "train a dense model",
        "--checkpoint-in-cpu: say of how many layers: --cpu-offloading-num-layers, beside --recompute-granularity full",
        "--yaml-cfg: use --config FILE.yaml with this framework's sections",
        "--position-embedding-type yarn: use rope, with --use-rope-scaling or --rotary-seq-len-interpolation-factor",
        "not yet: --offload-modules",
    )
    assert result.unreadable


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--hiden-size", "did you mean --hidden-size?"),
        ("--tensor-model-paralel-size", "did you mean --tensor-model-parallel-size?"),
        ("--no-biass-swiglu-fusion", "did you mean --no-bias-swiglu-fusion?"),
        ("--zzzz", "(see --help)"),
        ("--num-layer", "did you mean --num-layers?"),  # no abbreviations either
    ],
)
def test_unknown_flags_get_a_hint(flag, hint):
    (problem,) = told(f"{flag} 5").problems
    assert problem.startswith(f"unknown flag {flag}")
    assert problem.endswith(hint)


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("--dist-ckpt-strictness ignore_all", "loading is strict, which no flag loosens"),
        ("--exit-signal SIGINT", "SIGTERM and SIGUSR1 stop a run"),
        ("--non-persistent-save-interval 10", "use --save-interval"),
        ("--pretrained-checkpoint base", "use --load DIR --finetune"),
        ("--load-tag global_step10", "use --load DIR --ckpt-step STEP"),
        ("--reset-iteration", "use --finetune to start from step 0"),
        ("--ckpt-convert-format torch", "checkpoints have one format"),
        ("--check-for-large-grads", "use --loss-spike-policy"),
        ("--distribute-saved-activations", "cut over tensor-parallel ranks by --sequence-parallel"),
    ],
)
def test_what_checkpoints_and_faults_do_otherwise_is_refused_with_a_remedy(line, remedy):
    (problem,) = told(line).problems
    assert problem.startswith(line.split()[0])
    assert remedy in problem
