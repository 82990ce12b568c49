# SPDX-License-Identifier: Apache-2.0
"""Where tokens come from and in which proportions."""

from dataclasses import dataclass
from typing import Literal

TokenizerType = Literal[
    "ByteTokenizer",
    "GPT2BPETokenizer",
    "HuggingFaceTokenizer",
    "SentencePieceTokenizer",
    "Llama2Tokenizer",
    "NullTokenizer",
]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data sets, tokenizer and document handling."""

    data_path: tuple[str, ...] = ()
    """Prefix of a .bin/.idx pair, or `weight prefix weight prefix ...`, or several prefixes (shares by size)."""
    train_data_path: tuple[str, ...] = ()
    """The same for the training split alone."""
    valid_data_path: tuple[str, ...] = ()
    """The same for the validation split alone."""
    test_data_path: tuple[str, ...] = ()
    """The same for the test split alone."""
    data_args_path: str | None = None
    """A text file that holds what --data-path would."""
    per_split_data_args_path: str | None = None
    """A JSON file with lists under train, valid and test."""
    split: str | None = None
    """Weights of train, validation, test, such as 969,30,1 (that is the default with --data-path)."""
    validation_sets: tuple[str, ...] = ()
    """Further named validation sets: NAME=PREFIX ..."""
    blend_curriculum: str | None = None
    """YAML list of {tokens, weights}: from each token count on, the training blend has these weights."""
    mock_data: bool = False
    """Synthetic tokens, no files."""

    tokenizer_type: TokenizerType | None = None
    """Which tokenizer. Unset: GPT2BPETokenizer with --vocab-file; none is needed for --mock-data with --vocab-size."""
    tokenizer_model: str | None = None
    """File or directory of a Hugging Face or sentencepiece tokenizer."""
    vocab_file: str | None = None
    """vocab.json of GPT2BPETokenizer."""
    merge_file: str | None = None
    """merges.txt of GPT2BPETokenizer."""

    num_workers: int = 2
    """Threads that read ahead; 0 reads in the training thread."""
    dataloader_type: Literal["single"] = "single"
    """Samples in order of their number."""
    reset_position_ids: bool = False
    """Positions start again after each end of document."""
    reset_attention_mask: bool = False
    """Tokens attend only within their document."""
    eod_mask_loss: bool = False
    """No loss where the input token is the end of a document."""
    fim_rate: float = 0.0
    """Share of documents rearranged for fill-in-the-middle."""
    fim_spm_rate: float = 0.5
    """Of those, the share in suffix-prefix-middle order."""

    @property
    def tokenizer(self) -> TokenizerType | None:
        """The tokenizer asked for; with --vocab-file and no type it is Megatron's default, GPT2BPETokenizer."""
        if self.tokenizer_type is None and self.vocab_file is not None:
            return "GPT2BPETokenizer"
        return self.tokenizer_type
