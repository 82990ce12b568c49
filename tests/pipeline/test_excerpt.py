# SPDX-License-Identifier: Apache-2.0
"""What error messages show of a schedule."""

from megatron_core.pipeline.excerpt import excerpt


def test_the_surroundings_of_each_mark():
    steps = [f"s{i}" for i in range(20)]
    assert excerpt([steps, steps, steps[:3], steps], {1: 10, 3: 20}).splitlines() == [
        "stage   0, from step    6:  … s6  s7  s8  s9  s10  s11  s12  s13  s14 …",
        "stage   1, from step    6:  … s6  s7  s8  s9  --> s10  s11  s12  s13  s14 …",
        "stage   2, from step    0:  s0  s1  s2",
        "stage   3, from step   16:  … s16  s17  s18  s19  --> end",
    ]
