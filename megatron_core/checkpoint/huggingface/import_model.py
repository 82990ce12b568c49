# SPDX-License-Identifier: Apache-2.0
"""A directory of transformers as a checkpoint of ours. Only JSON and safetensors are read; nothing is executed."""

import contextlib
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path

import torch

from megatron_core.checkpoint.directory import finished_steps
from megatron_core.checkpoint.foreign import ForeignModel, ForeignTensor
from megatron_core.checkpoint.huggingface.families import family_of
from megatron_core.checkpoint.huggingface.family import Family
from megatron_core.checkpoint.huggingface.link import Link, by_ours
from megatron_core.checkpoint.huggingface.settings import Settings, read_json
from megatron_core.checkpoint.huggingface.tokenizer_files import import_tokenizer
from megatron_core.checkpoint.huggingface.weight_files import WeightFiles
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.rectangle import cut, whole
from megatron_core.checkpoint.saved_config import config_to_json
from megatron_core.checkpoint.verify import ReportBytes
from megatron_core.checkpoint.write_foreign import Check, write_checkpoint
from megatron_core.config.model import ModelConfig
from megatron_core.config.run import RunConfig
from megatron_core.config.validate import model_violations
from megatron_core.errors import CheckpointError

_PART_ELEMENTS = 2**22


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a config.json says."""

    family: Family
    model: ModelConfig
    """With its true vocabulary, and as many positions as the model is plainly causal over."""
    notes: tuple[str, ...]
    """What is other than it was there, a line each."""


def read_architecture(directory: Path, seq_length: int | None = None) -> Architecture:
    """Understand all of a config.json. `seq_length`: of the samples to train on, at most the model's positions.

    Raises CheckpointError for what is not understood, or would be computed otherwise here.
    """
    values = read_json(directory / "config.json")
    settings = Settings(str(directory / "config.json"), values)
    family = family_of(settings.text("model_type"))
    model = family.read_config(settings)
    if found := model_violations(RunConfig(model=model), 1):
        raise CheckpointError(f"{directory / 'config.json'}: what it says is, in flags of ours: {'; '.join(found)}")
    notes = []
    stated = values.get("max_position_embeddings")
    if isinstance(stated, int) and stated > model.seq_length:
        notes.append(
            f"{stated} positions there with a window of {model.seq_length}: {model.seq_length} positions here, within "
            "which attention is the same"
        )
    if seq_length is not None:
        if seq_length > model.seq_length:
            raise CheckpointError(f"--seq-length {seq_length} is more than the model's {model.seq_length} positions")
        model = replace(model, seq_length=seq_length)
    return Architecture(family=family, model=model, notes=tuple(notes))


def import_model(
    directory: Path,
    output: Path,
    architecture: Architecture,
    *,
    dtype: torch.dtype | None = None,
    report: ReportBytes,
    check: Check | None = None,
) -> Manifest:
    """Write the model in `directory` as <output>/step_00000000 and its tokenizer's files as <output>/tokenizer.

    dtype: to cast weights to; None: as they are. `report` hears of bytes written and as many read back; `check` may
    refuse what was written. Raises CheckpointError, DataError; nothing is left then.
    """
    if finished_steps(output):
        raise CheckpointError(f"{output} holds checkpoints already: give another --output")
    tokenizer = output / "tokenizer"
    try:
        with foreign_model(directory, architecture, tokenizer, dtype) as foreign:
            return write_checkpoint(foreign, output, report=report, check=check)
    except BaseException:
        shutil.rmtree(tokenizer, ignore_errors=True)
        with contextlib.suppress(OSError):
            output.rmdir()  # unless it holds something else
        raise


@contextmanager
def foreign_model(
    directory: Path, architecture: Architecture, tokenizer: Path, dtype: torch.dtype | None
) -> Iterator[ForeignModel]:
    """The model in `directory`, its files open, with its tokenizer's copied to `tokenizer` where it has any.

    Raises CheckpointError where weights are missing, of other shapes, or left over.
    """
    model = architecture.model
    with WeightFiles(directory) as files:
        tensors = _tensors(architecture, files, dtype)
        data = import_tokenizer(directory, tokenizer, model.vocabulary)
        if data.tokenizer_type == "NullTokenizer":  # its --vocab-size does not count the end of a document
            model = replace(model, vocab_size=model.vocabulary - 1)
        plain = config_to_json(RunConfig(model=model, data=data))
        config = {section: plain[section] for section in ("model", "data")}
        yield ForeignModel(config=config, tensors=tensors, origin=str(directory))


def import_bytes(directory: Path, architecture: Architecture, dtype: torch.dtype | None = None) -> int:
    """Bytes that `import_model` will report. Raises as it does."""
    with WeightFiles(directory) as files:
        return 2 * sum(tensor.nbytes for tensor in _tensors(architecture, files, dtype))


def _tensors(architecture: Architecture, files: WeightFiles, dtype: torch.dtype | None) -> list[ForeignTensor]:
    family, model = architecture.family, architecture.model
    if model.num_layers > len(files.tensors):  # nothing is made of a number that anybody wrote
        raise CheckpointError(f"the config says {model.num_layers} layers, but there are {len(files.tensors)} tensors")
    links = [_found(item, family, files) for item in family.links(model)]
    _refuse_rest(family, model, links, files)
    return [_tensor(name, parts, files, dtype) for name, parts in by_ours(links).items()]


def _found(item: Link, family: Family, files: WeightFiles) -> Link:
    """The link by the name that the files have. Raises CheckpointError where they hold no such tensor."""
    short = item.theirs.removeprefix(family.prefix)
    name = next((name for name in (item.theirs, short) if name in files.tensors), None)
    if name is None:
        hint = "; the config says that it is not tied to the embedding" if item.theirs == family.head else ""
        raise CheckpointError(f"the weights hold no {item.theirs}{hint}")
    shape = files.tensors[name].shape
    if shape != item.theirs_shape:
        raise CheckpointError(f"{name} has shape {shape}, but the config makes it {item.theirs_shape}")
    return replace(item, theirs=name)


def _refuse_rest(family: Family, model: ModelConfig, links: Sequence[Link], files: WeightFiles) -> None:
    """Raise CheckpointError where a tensor would be left behind: its numbers had a part in the model."""
    rest = files.tensors.keys() - {item.theirs for item in links}
    if family.head in rest and not model.untie_embeddings_and_output_weights:
        embedding = next(item for item in links if item.ours == "embedding.tokens.weight")
        if not _equal(files, family.head, embedding.theirs):
            raise CheckpointError(
                f"{family.head} is not {embedding.theirs}, to which the config says it is tied: set "
                "tie_word_embeddings to what is meant"
            )
        rest.remove(family.head)
    rest = {name for name in rest if not re.fullmatch(family.unused, name)}
    if rest:
        named = ", ".join(sorted(rest)[:3])
        raise CheckpointError(f"{len(rest)} tensors have no place in a {family.name} of this config: {named}")


def _equal(files: WeightFiles, one: str, other: str) -> bool:
    """Whether two tensors hold the same numbers, a part at a time."""
    a, b = files.tensors[one], files.tensors[other]
    if a.shape != b.shape:
        return False
    for rectangle in cut(whole(a.shape), _PART_ELEMENTS):
        pair = [torch.empty(rectangle.shape, dtype=tensor.dtype) for tensor in (a, b)]
        for values, name in zip(pair, (one, other)):
            files.fill(values, name, a.shape, rectangle)
        if not torch.equal(*pair):
            return False
    return True


def _tensor(name: str, links: Sequence[Link], files: WeightFiles, dtype: torch.dtype | None) -> ForeignTensor:
    stored = reduce(torch.promote_types, (files.tensors[item.theirs].dtype for item in links))
    if not stored.is_floating_point:
        raise CheckpointError(f"{links[0].theirs} is {stored}: weights are floats here")
    dtype = dtype or stored
    shape = links[0].ours_shape
    return ForeignTensor(name=name, shape=shape, dtype=dtype, read=partial(_read, links, files, dtype))


def _read(links: Sequence[Link], files: WeightFiles, dtype: torch.dtype) -> torch.Tensor:
    values = torch.empty(links[0].ours_shape, dtype=dtype)
    for item in links:
        files.fill(item.part_of_ours(values), item.theirs, item.seen, item.seen_at)
    return values
