# SPDX-License-Identifier: Apache-2.0
import pytest

REAL = {"mock_data": False, "tokenizer_type": "ByteTokenizer"}
PATH = {**REAL, "data_path": ("a",)}


@pytest.mark.parametrize(
    ("values", "part"),
    [
        (REAL, "no data: give --data-path"),
        ({**PATH, "mock_data": True}, "--data-path and --mock-data exclude each other"),
        ({**PATH, "train_data_path": ("b",)}, "--data-path and --train/valid/test-data-path exclude each other"),
        ({**PATH, "data_args_path": "b"}, "--data-path and --data-args-path exclude each other"),
        ({**REAL, "valid_data_path": ("b",)}, "--valid-data-path and --test-data-path need --train-data-path"),
        ({**REAL, "train_data_path": ("b",), "split": "1,1,1"}, "--split 1,1,1 does not go with data given per split"),
        ({**PATH, "split": "-1,1,0"}, "--split '-1,1,0' must be up to three weights"),
        ({**PATH, "split": "90,abc5,5"}, "--split '90,abc5,5' must be up to three weights"),
        ({**PATH, "split": "0,0,0"}, "--split '0,0,0' must be up to three weights"),
        ({**PATH, "split": "1,1,1,1"}, "must be up to three weights"),
        ({**PATH, "split": "nan,1,1"}, "must be up to three weights"),
        ({**PATH, "split": "inf,1,1"}, "must be up to three weights"),
        ({**PATH, "split": "0,1,1"}, "leaves nothing to train on"),
        ({"validation_sets": ("pile",)}, "--validation-sets takes NAME=PREFIX, not 'pile'"),
        ({"validation_sets": ("a=x", "a=y")}, "--validation-sets has a name twice: a a"),
        ({**PATH, "tokenizer_type": None}, "--tokenizer-type is required"),
        ({"vocab_size": None}, "--tokenizer-type is required (with --mock-data, --vocab-size N does as well)"),
        ({**PATH, "tokenizer_type": None, "vocab_file": "v"}, "GPT2BPETokenizer needs --vocab-file and --merge-file"),
        ({**PATH, "tokenizer_type": "HuggingFaceTokenizer"}, "HuggingFaceTokenizer needs --tokenizer-model"),
        ({**PATH, "tokenizer_type": "NullTokenizer", "vocab_size": None}, "NullTokenizer needs --vocab-size"),
    ],
)
def test_each_rule(complaints, values, part):
    (message,) = complaints(**values)
    assert part in message


@pytest.mark.parametrize(
    "values",
    [
        PATH,
        {**PATH, "split": "969, 30, 1"},
        {**PATH, "split": "100"},
        {**PATH, "split": "0.9/0.1"},
        {**REAL, "train_data_path": ("a",), "test_data_path": ("b",)},
        {**PATH, "tokenizer_type": None, "vocab_file": "v", "merge_file": "m"},
        {**PATH, "tokenizer_type": "Llama2Tokenizer", "tokenizer_model": "m"},
        {"validation_sets": ("pile=a", "wiki=b=c")},
    ],
)
def test_what_is_fine(complaints, values):
    assert complaints(**values) == []
