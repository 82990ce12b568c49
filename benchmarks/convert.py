# SPDX-License-Identifier: Apache-2.0
"""Peak memory and speed of conversions from and to transformers' files, beside a copy of the same files.

    python benchmarks/convert.py [--gigabytes 2] [--family llama] [--rounds 3] [--folder DIR]

Each round does everything once, in turn, each in a process of its own: a copy (read, write, synchronise), an export,
and an import, which also reads back all that it wrote. Weights are random fp32, and are not in the page cache when
they are read. Logits are not compared (--no-verify), for which both models would be held whole. The bound on memory is
1.3 x the largest tensor + 300 MB, torch itself included.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_core.checkpoint.files import write_file
from megatron_core.checkpoint.foreign import ForeignModel, ForeignTensor
from megatron_core.checkpoint.huggingface.families import FAMILIES
from megatron_core.checkpoint.huggingface.link import by_ours
from megatron_core.checkpoint.write_foreign import write_checkpoint
from megatron_core.config.model import ModelConfig

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "convert_checkpoint.py"
_CHUNK = 2**24
GPT2 = ModelConfig(
    num_layers=1,
    hidden_size=2048,
    num_attention_heads=16,
    kv_channels=128,
    ffn_hidden_size=8192,
    seq_length=1024,
    max_position_embeddings=1024,
    vocab_size=32000,
    gelu="tanh",
    untie_embeddings_and_output_weights=True,
)
MODELS = {
    "gpt2": GPT2,  # transposed, three of its weights in one
    "llama": replace(
        GPT2,
        gelu="auto",
        normalization="RMSNorm",
        swiglu=True,
        ffn_hidden_size=5504,
        position_embedding_type="rope",
        add_bias_linear=False,
        group_query_attention=True,
        num_query_groups=4,
    ),
}


@dataclass(frozen=True)
class Measured:
    """One process."""

    seconds: float
    peak_bytes: int


def sized(family: str, gigabytes: float) -> ModelConfig:
    """The model with as many layers as make that many bytes of fp32."""
    one, two = (nbytes(family, replace(MODELS[family], num_layers=count)) for count in (1, 2))
    return replace(MODELS[family], num_layers=max(1, round((gigabytes * 1e9 - one) / (two - one)) + 1))


def shapes(family: str, model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Our weights of a model."""
    return {name: links[0].ours_shape for name, links in by_ours(FAMILIES[family].links(model)).items()}


def nbytes(family: str, model: ModelConfig) -> int:
    """Bytes of a model in fp32."""
    return sum(4 * torch.Size(shape).numel() for shape in shapes(family, model).values())


def write_random(family: str, model: ModelConfig, run: Path) -> None:
    """A checkpoint of random weights, one tensor in memory at a time."""
    tensors = [
        ForeignTensor(name=name, shape=shape, dtype=torch.float32, read=partial(torch.randn, shape))
        for name, shape in shapes(family, model).items()
    ]
    foreign = ForeignModel(config={"model": asdict(model), "data": {}}, tensors=tensors, origin="random")
    write_checkpoint(foreign, run, report=lambda count: None)


def files_in(folder: Path) -> list[Path]:
    """All files below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def forget(folder: Path) -> None:
    """Take its files out of the page cache."""
    os.sync()
    for path in files_in(folder):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def copy(source: Path, target: Path) -> None:
    """All files, brought to the disk."""
    for path in files_in(source):
        (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as file:
            write_file(target / path.relative_to(source), iter(lambda: file.read(_CHUNK), b""))


def measure(command: Sequence[str]) -> Measured:
    """Run a process to its end."""
    begin = time.perf_counter()
    child = os.posix_spawn(command[0], list(command), os.environ)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    return Measured(time.perf_counter() - begin, usage.ru_maxrss * 1024)


def once(family: str, run: Path, hugging_face: Path, scratch: Path) -> dict[str, Measured]:
    """A copy, an export and an import, each from files that are not in memory."""
    tool = [sys.executable, str(TOOL)]
    this = [sys.executable, str(Path(__file__).resolve())]
    commands = {
        "copy": (hugging_face, [*this, "--copy", str(hugging_face), str(scratch)]),
        "export-hf": (run, [*tool, "export-hf", str(run), "--family", family, "--no-verify", "--output", str(scratch)]),
        "import-hf": (hugging_face, [*tool, "import-hf", str(hugging_face), "--no-verify", "--output", str(scratch)]),
    }
    found = {}
    for name, (source, command) in commands.items():
        forget(source)
        found[name] = measure(command)
        shutil.rmtree(scratch)
    return found


def report(rounds: Iterable[dict[str, Measured]], total: int, largest: int) -> None:
    """Medians over rounds, and the bound."""
    rounds = list(rounds)
    bound = 1.3 * largest + 300e6
    print(f"model {total / 1e9:.2f} GB, largest tensor {largest / 1e6:.0f} MB, bound on memory {bound / 1e6:.0f} MB")
    for name in rounds[0]:
        seconds = statistics.median(one[name].seconds for one in rounds)
        ratio = statistics.median(one[name].seconds / one["copy"].seconds for one in rounds)
        peak = max(one[name].peak_bytes for one in rounds)
        print(
            f"{name:10s} {seconds:6.1f} s   {total / seconds / 1e6:6.0f} MB/s   {ratio:5.2f} x the copy's time   "
            f"peak {peak / 1e6:.0f} MB{'' if peak <= bound else ': OVER THE BOUND'}"
        )


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--family", choices=MODELS, default="llama")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary directory")
    parser.add_argument("--copy", type=Path, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    model = sized(arguments.family, arguments.gigabytes)
    if arguments.copy:
        copy(*arguments.copy)
        return
    if arguments.write:
        write_random(arguments.family, model, arguments.write)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        run, hugging_face = Path(name) / "run", Path(name) / "hf"
        # Not in this process: what it once held would count as the peak of those that it starts.
        this = [sys.executable, str(Path(__file__).resolve()), "--family", arguments.family]
        measure([*this, "--gigabytes", str(arguments.gigabytes), "--write", str(run)])
        tool = [sys.executable, str(TOOL), "export-hf", str(run), "--family", arguments.family, "--no-verify"]
        measure([*tool, "--output", str(hugging_face)])
        scratch = Path(name) / "scratch"
        rounds = [once(arguments.family, run, hugging_face, scratch) for _ in range(arguments.rounds)]
    sizes = [4 * torch.Size(shape).numel() for shape in shapes(arguments.family, model).values()]
    report(rounds, sum(sizes), max(sizes))


if __name__ == "__main__":
    main()
