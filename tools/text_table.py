# SPDX-License-Identifier: Apache-2.0
"""Rows of text in aligned columns, for terminals and logs alike."""

from collections.abc import Collection, Sequence


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """Lines: the header, then the rows; the columns whose header is in `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    return [
        "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width) for name, cell, width in zip(header, row, widths)
        ).rstrip()
        for row in [header, *rows]
    ]
