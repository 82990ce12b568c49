# SPDX-License-Identifier: Apache-2.0
"""Which data sets make up a blend: the words after `--data-path` and their file forms.

PREFIX                            one data set
WEIGHT PREFIX WEIGHT PREFIX ...   shares of training samples
PREFIX PREFIX ...                 shares by number of tokens
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import orjson

from megatron_core.config.data import DataConfig
from megatron_core.data.blend import exact_weight
from megatron_core.data.split import PARTS
from megatron_core.errors import DataError


@dataclass(frozen=True)
class BlendSpec:
    """Prefixes in order, and their weights; None: by number of tokens."""

    prefixes: tuple[str, ...]
    weights: tuple[Fraction, ...] | None


def parse_data_path(words: Sequence[str], flag: str = "--data-path") -> BlendSpec:
    """Read the words of a flag. Raises DataError for a mixture of weighted and unweighted prefixes, naming the flag."""
    if not words:
        raise DataError(f"{flag}: no data set given")
    numeric = [_is_number(word) for word in words]
    if not any(numeric):
        return BlendSpec(_unique(words, flag), None)
    wrong = [word for i, word in enumerate(words) if numeric[i] != (i % 2 == 0)]
    if wrong or len(words) % 2:
        at = repr(wrong[0]) if wrong else f"the weight {words[-1]!r} at the end"
        raise DataError(
            f"{flag}: {' '.join(words)!r} mixes weights and prefixes: {at} is out of place; "
            "give WEIGHT PREFIX pairs throughout, or prefixes alone"
        )
    weights = tuple(exact_weight(word) for word in words[::2])
    if not all(weights):
        raise DataError(f"{flag}: weight 0 for {words[2 * weights.index(Fraction(0)) + 1]}; leave that data set out")
    return BlendSpec(_unique(words[1::2], flag), weights)


def blend_specs(data: DataConfig) -> dict[str, BlendSpec]:
    """The blend of each part that is given one: {"all": ...} where --split cuts it, else some of train, valid, test.

    Raises DataError when sources are given twice or not at all, or a file cannot be used.
    """
    per_split = {part: tuple(getattr(data, f"{part}_data_path")) for part in PARTS}
    flags = {part: f"--{part}-data-path" for part in PARTS}
    given = [
        flag for flag, words in (("--data-path", data.data_path), *zip(flags.values(), per_split.values())) if words
    ]
    given += ["--data-args-path"] * bool(data.data_args_path)
    given += ["--per-split-data-args-path"] * bool(data.per_split_data_args_path)
    together = set(given) <= set(flags.values())
    if not given or (len(given) > 1 and not together):
        said = f"they are given by {' and '.join(given)}" if given else "none are given"
        raise DataError(f"data sets must be named in one way, but {said}; use --data-path, or one path for each part")
    if data.data_path:
        return {"all": parse_data_path(data.data_path)}
    if data.data_args_path:
        return {"all": parse_data_path(_read(data.data_args_path).decode().split(), data.data_args_path)}
    if data.per_split_data_args_path:
        return _per_split_file(data.per_split_data_args_path)
    return {part: parse_data_path(words, flags[part]) for part, words in per_split.items() if words}


def named_sets(words: Sequence[str]) -> dict[str, str]:
    """`NAME=PREFIX ...` as a dict. Raises DataError for words of another form and for names given twice."""
    sets: dict[str, str] = {}
    for word in words:
        name, equals, prefix = word.partition("=")
        if not (name and equals and prefix) or name in sets:
            raise DataError(f"--validation-sets: {word!r}: give NAME=PREFIX, each name once")
        sets[name] = prefix
    return sets


def _per_split_file(path: str) -> dict[str, BlendSpec]:
    try:
        content = orjson.loads(_read(path))
    except orjson.JSONDecodeError as error:
        raise DataError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict) or not content or set(content) - set(PARTS):
        raise DataError(f"{path}: must be an object with some of the keys {', '.join(PARTS)}")
    specs = {}
    for part, words in content.items():
        if not isinstance(words, list) or not all(isinstance(word, str | int | float) for word in words):
            raise DataError(f'{path}: {part} must be a list such as ["0.3", "prefix", "0.7", "prefix"]')
        if words:
            specs[part] = parse_data_path([str(word) for word in words], f"{path}: {part}")
    return specs


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot read: {error.strerror}") from error


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _unique(prefixes: Sequence[str], flag: str) -> tuple[str, ...]:
    """The prefixes. A set named twice would be shuffled alike twice, so its samples would come in pairs."""
    for prefix in prefixes:
        if prefixes.count(prefix) > 1:
            raise DataError(
                f"{flag}: {prefix} is named {prefixes.count(prefix)} times; name it once, with the summed weight"
            )
    return tuple(prefixes)
