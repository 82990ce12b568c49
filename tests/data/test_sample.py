# SPDX-License-Identifier: Apache-2.0
from megatron_core.data.sample import padding_sample


def test_padding_has_the_length_of_a_sample_and_no_targets() -> None:
    sample = padding_sample(8)
    assert sample.tokens.shape == (9,)
    assert (sample.number, sample.num_targets) == (-1, 0)
