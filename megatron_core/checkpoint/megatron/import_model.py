# SPDX-License-Identifier: Apache-2.0
"""An opened checkpoint of Megatron-LM as a model of ours, to be written by `write_foreign`."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial

import torch

from megatron_core.checkpoint.foreign import ForeignModel, ForeignTensor
from megatron_core.checkpoint.megatron.arguments import model_config
from megatron_core.checkpoint.megatron.opened import OpenedMegatron
from megatron_core.checkpoint.megatron.parameters import EMBEDDING, HEAD, Parameter, Part, parameters
from megatron_core.checkpoint.megatron.sharded import ShardedTensor
from megatron_core.checkpoint.plain import quote
from megatron_core.config.data import DataConfig
from megatron_core.config.values import to_yaml
from megatron_core.errors import CheckpointError


def foreign_model(opened: OpenedMegatron, data: DataConfig, vocab_size: int) -> ForeignModel:
    """Its weights under our names, in the dtype that each is stored in; `vocab_size` is the true one.

    `data` names the tokenizer. Raises CheckpointError where the arguments describe no model of ours or the weights are
    not those of that model; reading a tensor does where ranks disagree about it.
    """
    if not 0 < vocab_size <= opened.padded_vocab_size:
        raise CheckpointError(
            f"{opened.origin} has word embeddings for {opened.padded_vocab_size} tokens, padding included, which "
            f"cannot be a vocabulary of {vocab_size}"
        )
    model = model_config(opened.arguments, vocab_size, opened.origin)
    if model.num_layers != opened.num_layers:
        raise CheckpointError(f"{opened.origin} holds {opened.num_layers} layers, its arguments say {model.num_layers}")
    wanted = parameters(model, opened.padded_vocab_size)
    found = dict(opened.assemble(wanted))
    if not model.untie_embeddings_and_output_weights and HEAD in found:
        found[EMBEDDING] = replace(found[EMBEDDING], copies=(*found[EMBEDDING].copies, found[HEAD]))
    saved = replace(model, vocab_size=vocab_size - 1) if data.tokenizer_type == "NullTokenizer" else model
    config = {"model": asdict(saved), "data": {name: to_yaml(value) for name, value in asdict(data).items()}}
    tensors = [tensor for parameter in wanted for tensor in _ours(parameter, found[parameter.name])]
    return ForeignModel(config=config, tensors=tensors, origin=opened.origin)


def vocabulary_question(opened: OpenedMegatron) -> str:
    """What to ask where the true vocabulary is not known."""
    arguments = opened.arguments
    said = ", ".join(
        f"{name} {quote(arguments[name])}"
        for name in ("tokenizer_type", "tokenizer_model", "vocab_file", "vocab_size")
        if arguments.get(name) is not None
    )
    return (
        f"{opened.origin} has embeddings for {opened.padded_vocab_size} tokens, padding included, and does not say how "
        f"many are real: give --vocab-size, or the tokenizer ({said or 'the checkpoint names none'})"
    )


def padding_note(opened: OpenedMegatron, vocab_size: int) -> str | None:
    """What is to be said about the rows that are left out."""
    padded, arguments = opened.padded_vocab_size, opened.arguments
    divisor, tp = (arguments.get(name) for name in ("make_vocab_size_divisible_by", "tensor_model_parallel_size"))
    if padded == vocab_size:
        return None
    note = (
        f"{padded - vocab_size} rows of padding are left out; Megatron-LM counts them in its softmax, which here they "
        "are not in, so that losses are a little smaller"
    )
    if type(divisor) is int and type(tp) is int and divisor * tp > 0:
        expected = -(-vocab_size // (divisor * tp)) * divisor * tp
        if expected != padded:
            note += f"; {vocab_size} tokens would have been padded to {expected}, not {padded}: is --vocab-size right?"
    return note


def _ours(parameter: Parameter, tensor: ShardedTensor) -> Iterator[ForeignTensor]:
    for part in parameter.parts:
        read = partial(_read, parameter, part, tensor)
        yield ForeignTensor(name=part.name, shape=part.shape, dtype=tensor.dtype, read=read)


def _read(parameter: Parameter, part: Part, tensor: ShardedTensor) -> torch.Tensor:
    tensor.require_equal_copies()
    values = torch.empty(part.shape, dtype=tensor.dtype)
    blocks = values.view(part.matrix_shape(parameter.width))
    for block, rectangle in zip(blocks, part.rectangles(parameter.width)):
        tensor.fill(block, rectangle)
    return values
