# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.config.batch_steps import parse_batch_steps


def test_tokens_with_units() -> None:
    assert parse_batch_steps("0:768 250B:1536 0.5t:3072") == ((0, 768), (250 * 10**9, 1536), (5 * 10**11, 3072))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "start at 0"),
        ("5:8", "start at 0"),
        ("0:8 8", "'8' is not TOKENS:BATCH"),
        ("0:8 1K:16 1000:32", "in order"),
        ("0:0", "at least 1 sample"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_batch_steps(text)
