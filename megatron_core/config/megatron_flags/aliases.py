# SPDX-License-Identifier: Apache-2.0
"""Megatron flags that mean one of ours under another name or with another value.

`RENAMED` keeps the words that follow; `SAME_AS` replaces the flag with whole words of ours; `IMPLIED` does so only
where nothing else on the command line sets the same thing; `VALUE_ALIASES` renames single values.
"""

from collections.abc import Mapping

RENAMED: Mapping[str, str] = {
    "encoder-num-layers": "num-layers",
    "encoder-seq-length": "seq-length",
    "layernorm-epsilon": "norm-epsilon",
    "min-scale": "min-loss-scale",
    "pad-vocab-size-to": "padded-vocab-size",
    "rotary-position-embeddings-theta": "rotary-base",
    "tokenizer-name-or-path": "tokenizer-model",
}
"""Old or fork's name -> our flag; the values stay."""

SAME_AS: Mapping[str, str] = {
    "disable-bias-linear": "--no-add-bias-linear",
    "disable-log-loss-scale-to-tensorboard": "--no-log-loss-scale-to-tensorboard",
    "enable-zbh1-exact-semantics": "--pipeline-schedule zero-bubble",
    "enable-zbh1-pipeline": "--pipeline-schedule zero-bubble",
    "no-query-key-layer-scaling": "--no-apply-query-key-layer-scaling",
    "num-key-value-heads": "--group-query-attention --num-query-groups {}",
    "openai-gelu": "--gelu tanh",
    "use-rotary-position-embeddings": "--position-embedding-type rope",
}
"""Megatron flag -> our words; {} stands for the flag's value."""

IMPLIED: Mapping[str, str] = {
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
