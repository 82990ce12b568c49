# SPDX-License-Identifier: Apache-2.0
"""The data sets that the flags name, opened, and the token stream that each has for training, validation or test."""

import logging
from collections.abc import Sequence
from pathlib import Path

from megatron_core.config.data import DataConfig
from megatron_core.data.blend import Blend
from megatron_core.data.data_paths import BlendSpec, blend_specs
from megatron_core.data.gpt_dataset import TokenStream, open_stream
from megatron_core.data.indexed_file import IndexedFile
from megatron_core.data.split import DEFAULT_SPLIT, PARTS, parse_split, part_range, split_ranges
from megatron_core.errors import DataError

logger = logging.getLogger(__name__)


class Sources:
    """Files by prefix, each opened once. Raises DataError when one cannot be, or when they are not named in one way."""

    def __init__(self, data: DataConfig) -> None:
        self._specs = blend_specs(data)
        self._split = parse_split(data.split or DEFAULT_SPLIT)
        prefixes = dict.fromkeys(prefix for spec in self._specs.values() for prefix in spec.prefixes)
        self._files = {prefix: IndexedFile(prefix) for prefix in prefixes}

    def train(self) -> tuple[BlendSpec, tuple[TokenStream, ...]]:
        """The training blend and the stream of each of its data sets. Raises DataError when one is empty."""
        spec = self._spec("train")
        if spec is None:
            raise DataError("no training data: give --train-data-path beside the other paths, or --data-path")
        return spec, tuple(open_stream(self._files[prefix], self._range(prefix, "train")) for prefix in spec.prefixes)

    def held_out(self, part: str) -> tuple[Blend, tuple[TokenStream, ...]] | None:
        """The same for valid or test; None where nothing is meant for it.

        Data sets without tokens in that part are left out, which the log says. When none is left, that is an error for
        validation, but not for the test part, which only closes a run.
        """
        spec = self._spec(part)
        if spec is None or ("all" in self._specs and not self._split[PARTS.index(part)]):
            return None
        streams = {prefix: self._stream_or_none(prefix, part) for prefix in spec.prefixes}
        usable = [prefix for prefix, stream in streams.items() if stream is not None]
        left_out = [prefix for prefix, stream in streams.items() if stream is None]
        if not usable and part == "valid":
            self._range(spec.prefixes[0], part)
            raise DataError(f"no validation data: fewer than 2 tokens in each of {', '.join(spec.prefixes)}")
        if left_out:
            # Every rank finds the same: at INFO rank 0 alone says it, where a warning would come from each.
            logger.info("no %s data in %s: the part of --split is empty there", part, ", ".join(left_out))
        if not usable:
            return None
        kept = tuple(stream for stream in streams.values() if stream is not None)
        weights = None if spec.weights is None else tuple(spec.weights[spec.prefixes.index(p)] for p in usable)
        return blend_of(BlendSpec(tuple(usable), weights), kept), kept

    def _spec(self, part: str) -> BlendSpec | None:
        return self._specs.get("all", self._specs.get(part))

    def _range(self, prefix: str, part: str) -> tuple[int, int] | None:
        """Sequences of a part; None: all. Raises DataError for a part that is empty."""
        if "all" not in self._specs:
            return None
        return part_range(self._split, self._files[prefix].num_sequences, part, prefix)

    def _stream_or_none(self, prefix: str, part: str) -> TokenStream | None:
        file = self._files[prefix]
        sequences = None
        if "all" in self._specs:
            sequences = split_ranges(self._split, file.num_sequences)[PARTS.index(part)]
        stream = open_stream(file, sequences)
        return stream if stream.num_tokens >= 2 else None


def blend_of(spec: BlendSpec, streams: Sequence[TokenStream]) -> Blend:
    """The blend of a spec: its weights, or the number of tokens of each stream."""
    return Blend(spec.weights or [stream.num_tokens for stream in streams])


def short_name(prefix: str) -> str:
    """Name that keys the shuffling: without its folder, so that data may be moved."""
    return Path(prefix).name
