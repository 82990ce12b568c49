# SPDX-License-Identifier: Apache-2.0
"""Masks, positions and documents of a batch."""

import numpy as np
import pytest
import torch

from megatron_core.data.batch import Batch, DocumentRules, make_batch
from megatron_core.data.sample import Sample, padding_sample
from megatron_core.errors import DataError

EOD = 0


def batch_of(rows: list[list[int]], targets: list[int] | None = None, **flags: bool) -> Batch:
    samples = [Sample(i, np.array(row), len(row) - 1 if targets is None else targets[i]) for i, row in enumerate(rows)]
    return make_batch(samples, DocumentRules(eod=EOD, vocab_size=100, **flags))


def test_an_end_of_document_keeps_its_loss_and_the_step_after_it_may_be_dropped() -> None:
    row = [5, 6, EOD, 7, 8]
    assert batch_of([row]).labels.tolist() == [[6, EOD, 7, 8]]
    assert batch_of([row]).loss_mask.tolist() == [[True, True, True, True]]
    assert batch_of([row], eod_mask_loss=True).loss_mask.tolist() == [[True, True, False, True]]


def test_padding_is_masked_by_position_even_where_its_id_is_the_end_of_document() -> None:
    batch = batch_of([[5, 6, EOD, EOD, EOD]], targets=[2])
    assert batch.labels.tolist() == [[6, EOD, EOD, EOD]]
    assert batch.loss_mask.tolist() == [[True, True, False, False]]


def test_positions_and_documents_start_again_after_the_end_of_document() -> None:
    rows = [[1, EOD, 2, 3, EOD, EOD, 4, 5], [EOD, 1, 2, 3, 4, 5, 6, EOD]]
    plain = batch_of(rows)
    assert plain.position_ids.tolist() == [list(range(7))] * 2
    assert plain.document_ids is None
    batch = batch_of(rows, reset_position_ids=True, reset_attention_mask=True)
    assert batch.position_ids.tolist() == [[0, 1, 0, 1, 2, 0, 0], [0, 0, 1, 2, 3, 4, 5]]
    assert batch.document_ids is not None
    assert batch.document_ids.tolist() == [[0, 0, 1, 1, 1, 2, 3], [0, 1, 1, 1, 1, 1, 1]]


def test_shapes_and_types() -> None:
    batch = make_batch([Sample(7, np.arange(5), 4), padding_sample(4)], DocumentRules(eod=None, vocab_size=5))
    for tensor in (batch.tokens, batch.labels, batch.position_ids):
        assert (tensor.shape, tensor.dtype) == ((2, 4), torch.int64)
    assert (batch.loss_mask.shape, batch.loss_mask.dtype) == ((2, 4), torch.bool)
    assert batch.loss_mask.sum(1).tolist() == [4, 0]
    assert batch.sample_numbers.tolist() == [7, -1]


@pytest.mark.parametrize("wrong", [100, -1, 65535])
def test_ids_outside_the_vocabulary_name_the_sample(wrong: int) -> None:
    with pytest.raises(DataError, match=f"sample 1 holds token id {wrong}, but the vocabulary has 100"):
        batch_of([[1, 2, 3], [4, wrong, 6]])


def test_flags_that_need_an_end_of_document() -> None:
    with pytest.raises(DataError, match="--reset-position-ids, --eod-mask-loss: the tokenizer has no end-of-document"):
        DocumentRules(eod=None, vocab_size=9, reset_position_ids=True, eod_mask_loss=True)
