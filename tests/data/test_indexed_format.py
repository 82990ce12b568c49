# SPDX-License-Identifier: Apache-2.0
"""The header and where the sections lie."""

from pathlib import Path

import numpy as np
import pytest

from megatron_core.data.indexed_format import DTYPES, IndexHeader, bin_path, idx_path, parse_header, token_dtype
from megatron_core.errors import DataError


@pytest.mark.parametrize("code", DTYPES)
def test_headers_come_back(code: int) -> None:
    header = IndexHeader(dtype=DTYPES[code], sequences=2**40, document_indices=2**40 + 1)
    assert len(header.pack()) == 34 and header.pack()[17] == code
    assert parse_header(header.pack(), Path("x")) == header


def test_sections() -> None:
    header = IndexHeader(dtype=np.dtype("<u2"), sequences=3, document_indices=4)
    assert (header.pointers_offset, header.documents_offset, header.size) == (46, 70, 102)


def test_token_types_by_vocabulary() -> None:
    assert token_dtype(65499) == np.uint16
    assert token_dtype(65500) == np.int32


def test_names_keep_dots_of_the_prefix() -> None:
    assert str(bin_path("a/pile.v1")) == "a/pile.v1.bin"
    assert str(idx_path("a/pile.v1")) == "a/pile.v1.idx"


def test_short_headers_are_named() -> None:
    with pytest.raises(DataError, match=r"x\.idx: 3 bytes"):
        parse_header(b"MMI", Path("x.idx"))
