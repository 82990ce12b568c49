# SPDX-License-Identifier: Apache-2.0
"""A config.json that is read key by key, so that in the end it is known which keys nobody has understood.

A key that is passed over could change the numbers; only those that are known not to are left unread.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from megatron_core.checkpoint.plain import quote
from megatron_core.errors import CheckpointError


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


HARMLESS = _names(
    """
    architectures model_type transformers_version dtype torch_dtype use_cache bos_token_id eos_token_id pad_token_id
    initializer_range unk_token_id _model_name_or_path _name_or_path name_or_path _commit_hash _attn_implementation
    _attn_implementation_autoset _attn_implementation_internal task_specific_params problem_type id2label label2id
    num_labels prefix sep_token_id cls_token_id decoder_start_token_id tokenizer_class finetuning_task
    output_attentions output_hidden_states output_scores return_dict return_dict_in_generate torchscript use_bfloat16
    gradient_checkpointing chunk_size_feed_forward is_encoder_decoder max_length min_length do_sample early_stopping
    num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences forced_bos_token_id
    forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    pruned_heads tf_legacy_loss unsloth_version unsloth_fixed transformers.js_config
    """
)
"""Keys of any model that have no part in its logits."""


class Settings:
    """The keys of one config.json, or of an object in it."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        """`where` stands before every message."""
        self._where, self._values = where, dict(values)

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; without default the key is required."""
        value = self._take(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"{self._where}: {key} is {quote(value)}, not a positive integer")
        return value

    def optional(self, key: str, default: int) -> int | None:
        """As `integer`, where a null means that there is none."""
        if key in self._values and self._values[key] is None:
            return self._values.pop(key)
        return self.integer(key, default)

    def number(self, key: str, default: float | None = None) -> float:
        """A number >= 0; without default the key is required."""
        value = self._take(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < float("inf"):
            raise CheckpointError(f"{self._where}: {key} is {quote(value)}, not a number of at least 0")
        return float(value)

    def same_number(self, *keys: str) -> float | None:
        """The number that all of these keys have that are there; None where none is. Raises CheckpointError else."""
        found = {key: self.number(key) for key in keys if self._values.get(key) is not None}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{key} {value:g}" for key, value in found.items())
            raise CheckpointError(f"{self._where}: {listed}: these are names of one number")
        return next(iter(found.values()), None)

    def boolean(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"{self._where}: {key} is {quote(value)}, not true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string; without default the key is required."""
        value = self._take(key, default)
        if not isinstance(value, str):
            raise CheckpointError(f"{self._where}: {key} is {quote(value)}, not a string")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings; empty where it is null or absent."""
        value = self._values.pop(key, None) or []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise CheckpointError(f"{self._where}: {key} is {quote(value)}, not a list of strings")
        return value

    def merged(self, *keys: str) -> "Settings":
        """What the objects under these keys hold together, each of which may be null or absent.

        Raises CheckpointError where two of them disagree.
        """
        found: dict[str, Any] = {}
        for key in keys:
            value = self._values.pop(key, None) or {}
            if not isinstance(value, dict):
                raise CheckpointError(f"{self._where}: {key} is {quote(value)}, not an object")
            for name, item in value.items():
                if found.setdefault(name, item) != item:
                    raise CheckpointError(
                        f"{self._where}: {name} is {quote(found[name])} or {quote(item)} in {' and '.join(keys)}"
                    )
        return Settings(f"{self._where}: {keys[0]}", found)

    def require(self, key: str, allowed: object, why: str, *, default: object = ...) -> None:
        """Read a key that must have this one value. An absent one has it, unless there is a `default`; None: required.

        Raises CheckpointError with `why`.
        """
        value = self._take(key, allowed if default is ... else default)
        if value != allowed:
            raise CheckpointError(f"{self._where}: {key} is {quote(value)}, not {quote(allowed)}: {why}")

    def refuse_rest(self, ignored: Collection[str] = ()) -> None:
        """Raise CheckpointError that names every key that was not read, is not null and not known to be harmless."""
        rest = [
            f"{key} {quote(value)}"
            for key, value in sorted(self._values.items())
            if value is not None and key not in HARMLESS and key not in ignored
        ]
        if rest:
            raise CheckpointError(f"{self._where}: {', '.join(rest)}: not understood, and may change the numbers")

    def _take(self, key: str, default: Any) -> Any:
        value = self._values.pop(key, None)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(f"{self._where}: {key} is missing")
        return value


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds {quote(value)}, not an object")
    return value
