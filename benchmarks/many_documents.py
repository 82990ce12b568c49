# SPDX-License-Identifier: Apache-2.0
"""Start-up with ten million documents beside start-up with a thousand: launch to the end of the first step, in turn.

python benchmarks/many_documents.py [--rounds 5]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from megatron_core.data.indexed_format import HEADER, MAGIC

ROOT = Path(__file__).resolve().parent.parent
FLAGS = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
    "--micro-batch-size 2 --train-iters 1 --lr 1e-3 --tokenizer-type NullTokenizer --vocab-size 100 --eval-iters 0"
)


def write(prefix: Path, documents: int) -> None:
    """A pair of documents of 8 tokens each; the tokens are a hole in the file system."""
    with open(f"{prefix}.idx", "wb") as index:
        index.write(HEADER.pack(MAGIC, 1, 8, documents, documents + 1))
        index.write(np.full(documents, 8, "<i4").tobytes())
        index.write((np.arange(documents, dtype="<i8") * 16).tobytes())
        index.write(np.arange(documents + 1, dtype="<i8").tobytes())
    with open(f"{prefix}.bin", "wb") as tokens:
        tokens.truncate(16 * documents)


def start(prefix: Path) -> float:
    """Seconds of a run of one step."""
    begin = time.perf_counter()
    command = [sys.executable, str(ROOT / "pretrain_gpt.py"), *FLAGS.split(), "--data-path", str(prefix)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        sizes = {1_000: Path(folder) / "few", 10_000_000: Path(folder) / "many"}
        for documents, prefix in sizes.items():
            write(prefix, documents)
        seconds = [[start(prefix) for prefix in sizes.values()] for _ in range(rounds + 1)][1:]
    few, many = (statistics.median(column) for column in zip(*seconds))
    ratio = statistics.median(many / few for few, many in seconds)
    print(f"1,000 documents {few:.2f} s, 10,000,000 documents {many:.2f} s, ratio {ratio:.2f} (goal 1.2)")


if __name__ == "__main__":
    main()
