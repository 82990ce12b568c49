# SPDX-License-Identifier: Apache-2.0
"""The data flags -> the data sets of a run."""

from collections.abc import Mapping
from dataclasses import dataclass

from megatron_core.config.data import DataConfig
from megatron_core.data.blend import Blend
from megatron_core.data.blended_samples import BlendedSamples
from megatron_core.data.curriculum import parse_curriculum
from megatron_core.data.data_paths import named_sets
from megatron_core.data.fim import FimSamples
from megatron_core.data.gpt_dataset import SequentialSamples, ShuffledSamples, open_stream
from megatron_core.data.indexed_file import IndexedFile
from megatron_core.data.mock_samples import MockSamples
from megatron_core.data.sample import TrainingData, ValidationData
from megatron_core.data.selected_samples import select
from megatron_core.data.sources import Sources, blend_of, short_name
from megatron_core.data.tokenizer import Tokenizer

DEFAULT_SET = "validation"
"""Name of the validation set that --data-path or --valid-data-path gives."""

_MOCK_SET_SIZE = 1024


@dataclass(frozen=True, kw_only=True)
class Datasets:
    """Endless training data, validation sets by name, and the test set, if there is one."""

    train: TrainingData
    validation: Mapping[str, ValidationData]
    test: ValidationData | None


def build_datasets(
    data: DataConfig, *, seed: int, seq_length: int, tokenizer: Tokenizer, eval_samples: int | None
) -> Datasets:
    """Open what the flags name; takes the same time for any number of documents.

    `eval_samples` is how many samples one validation reads at most (eval_iters x global batch). None: each set whole;
    0: no validation and no test. Raises DataError when a file, a blend or a split cannot be used.
    """
    if data.mock_data:
        return _mock_datasets(tokenizer.vocab_size, seed, seq_length, eval_samples)
    sources = Sources(data)
    train = _training(sources, data, seed, seq_length)
    if data.fim_rate > 0:
        train = FimSamples(train, tokenizer, data.fim_rate, data.fim_spm_rate, seed)
    if eval_samples == 0:
        return Datasets(train=train, validation={}, test=None)
    main = _held_out(sources, "valid", seq_length, eval_samples)
    validation = {} if main is None else {DEFAULT_SET: main}
    for name, prefix in named_sets(data.validation_sets).items():
        whole = SequentialSamples(open_stream(IndexedFile(prefix)), seq_length)
        validation[name] = select((whole,), Blend([1]), eval_samples)
    test = _held_out(sources, "test", seq_length, eval_samples)
    return Datasets(train=train, validation=validation, test=test)


def _training(sources: Sources, data: DataConfig, seed: int, seq_length: int) -> TrainingData:
    spec, streams = sources.train()
    sets = tuple(
        ShuffledSamples(stream, seq_length, (seed, short_name(prefix)))
        for stream, prefix in zip(streams, spec.prefixes, strict=True)
    )
    blend = blend_of(spec, streams)
    if data.blend_curriculum:
        return BlendedSamples(sets, parse_curriculum(data.blend_curriculum, spec.prefixes, blend, seq_length))
    return BlendedSamples(sets, blend) if len(sets) > 1 else sets[0]


def _held_out(sources: Sources, part: str, seq_length: int, samples: int | None) -> ValidationData | None:
    found = sources.held_out(part)
    if found is None:
        return None
    blend, streams = found
    return select(tuple(SequentialSamples(stream, seq_length) for stream in streams), blend, samples)


def _mock_datasets(vocab_size: int, seed: int, seq_length: int, eval_samples: int | None) -> Datasets:
    train = MockSamples(vocab_size, seq_length, seed, "train")
    if eval_samples == 0:
        return Datasets(train=train, validation={}, test=None)
    size = _MOCK_SET_SIZE if eval_samples is None else eval_samples
    validation = MockSamples(vocab_size, seq_length, seed, "valid", size)
    return Datasets(
        train=train,
        validation={DEFAULT_SET: validation},
        test=MockSamples(vocab_size, seq_length, seed, "test", size),
    )
