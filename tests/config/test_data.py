# SPDX-License-Identifier: Apache-2.0
from megatron_core.config.data import DataConfig


def test_a_vocabulary_file_alone_means_the_gpt2_tokenizer():
    assert DataConfig().tokenizer is None
    assert DataConfig(vocab_file="vocab.json").tokenizer == "GPT2BPETokenizer"
    assert DataConfig(vocab_file="vocab.json", tokenizer_type="ByteTokenizer").tokenizer == "ByteTokenizer"
