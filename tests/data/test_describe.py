# SPDX-License-Identifier: Apache-2.0
"""Lines about a data set."""

from pathlib import Path

import numpy as np

from megatron_core.data.describe import describe_dataset
from megatron_core.data.indexed_writer import IndexedWriter


def test_large_sets_are_looked_at_here_and_there(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "d", np.dtype(np.uint16)) as writer:
        writer.add_documents(np.zeros(25_000 * 4), np.full(25_000, 4))
    lines = describe_dataset(
        str(tmp_path / "d"), tokenizer=None, documents=2, seq_length=1000, train_samples=198, split="1,1"
    )
    assert "25,000 documents" in lines[0]
    assert "90 %: 4" in lines[1] and "one in 3 looked at" in lines[1]
    assert lines[2] == "training part: 50,000 tokens, 49 samples of 1,000 an epoch"
    assert lines[3] == "a plan of 198 samples: 198,000 tokens, 4.04 epochs"
    assert lines[4:] == ["sequence 0 (4 tokens): 0 0 0 0", "sequence 24,999 (4 tokens): 0 0 0 0"]
