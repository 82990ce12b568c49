# SPDX-License-Identifier: Apache-2.0
"""Megatron flags that mean one of ours under another name or with another value.

`RENAMED` keeps the words that follow; `SAME_AS` replaces the flag with whole words of ours; `IMPLIED` does so only
where nothing else on the command line sets the same thing; `VALUE_ALIASES` renames single values, `VALUES_SAME_AS`
gives them words of ours.
"""

from collections.abc import Mapping

RENAMED: Mapping[str, str] = {
    "cpu-optimizer": "optimizer-cpu-offload",
    "checkpoint-num-layers": "recompute-num-layers",
    "encoder-num-layers": "num-layers",
    "encoder-seq-length": "seq-length",
    "exit-signal-handler-for-training": "exit-signal-handler",
    "kill-switch-file": "kill-switch-path",
    "layernorm-epsilon": "norm-epsilon",
    "min-scale": "min-loss-scale",
    "override-lr-scheduler": "override-opt-param-scheduler",
    "pad-vocab-size-to": "padded-vocab-size",
    "persistent-save-interval": "save-interval",
    "rotary-position-embeddings-theta": "rotary-base",
    "skip-train-iteration-range": "iterations-to-skip",
    "tokenizer-name-or-path": "tokenizer-model",
    "use-checkpoint-lr-scheduler": "use-checkpoint-opt-param-scheduler",
}
"""Old or fork's name -> our flag; the values stay."""

SAME_AS: Mapping[str, str] = {
    # Megatron calls 10 times the largest loss so far a spike.
    "check-for-spiky-loss": "--loss-spike-policy stop --loss-spike-factor 10",
    "disable-bias-linear": "--no-add-bias-linear",
    "disable-log-loss-scale-to-tensorboard": "--no-log-loss-scale-to-tensorboard",
    "enable-zbh1-exact-semantics": "--pipeline-schedule zero-bubble",
    "enable-zbh1-pipeline": "--pipeline-schedule zero-bubble",
    "gpt-j-residual": "--use-parallel-residual",
    "no-query-key-layer-scaling": "--no-apply-query-key-layer-scaling",
    "num-key-value-heads": "--group-query-attention --num-query-groups {}",
    "openai-gelu": "--gelu tanh",
    "recompute-activations": "--recompute-granularity selective",
    "use-rotary-position-embeddings": "--position-embedding-type rope",
}
"""Megatron flag -> our words; {} stands for the flag's value."""

IMPLIED: Mapping[str, str] = {
    "checkpoint-activations": "--recompute-granularity full",
    "fim-data": "--fim-rate 0.5",
    # Megatron's fused bias+GELU kernel is the tanh form, its unfused GELU the exact one: the switch changes the model.
    "no-bias-gelu-fusion": "--gelu exact",
    # Old scripts write it beside rotary embeddings, which then win.
    "no-position-embedding": "--position-embedding-type none",
}
"""Megatron flag -> our words, unless the command line sets that field otherwise."""

VALUE_ALIASES: Mapping[tuple[str, str], str] = {
    ("dataloader-type", "cyclic"): "single",
    ("optimizer", "adamw"): "adam",
    ("position-embedding-type", "rotary"): "rope",
    ("tokenizer-type", "GPTSentencePieceTokenizer"): "SentencePieceTokenizer",
    ("tokenizer-type", "HFTokenizer"): "HuggingFaceTokenizer",
    ("tokenizer-type", "PretrainedFromHF"): "HuggingFaceTokenizer",
}
"""(flag, its value elsewhere) -> our value."""

VALUES_SAME_AS: Mapping[tuple[str, str], str] = {
    ("data-parallel-sharding-strategy", "optim"): "--use-distributed-optimizer",
    ("zero-stage", "1"): "--use-distributed-optimizer",
}
"""(flag, value) -> our words, where other values of the flag mean something else."""
