# SPDX-License-Identifier: Apache-2.0
"""The demo's model, trained, leaves for transformers, says the same there, comes back and trains on."""

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from megatron_core.data.indexed_writer import IndexedWriter
from megatron_core.inference.generate import GenerationSettings, generate
from megatron_core.inference.open_model import open_model
from megatron_core.inference.sampling import Sampling
from megatron_core.parallel.context import ParallelContext
from tests.e2e.proof import run_whole
from tests.e2e.run_folder import columns
from tests.rank_pool import session_pool
from tools.convert_checkpoint import main

MODEL = (
    "--num-layers 2 --position-embedding-type rope --normalization RMSNorm --swiglu --ffn-hidden-size 64 "
    "--disable-bias-linear --qk-layernorm --hidden-dropout 0 --attention-dropout 0 --seq-length 32 "
    "--max-position-embeddings 32"
)
RUN = f"{MODEL} --tokenizer-type ByteTokenizer --split 100,0,0 --micro-batch-size 8 --lr 4e-3"
TEXT = b"to be or not to be, that is the question.\n" * 500
PROMPT, NEW = "to be or no", 16


def goes_on(ctx: ParallelContext, run: Path) -> list[int]:
    """Ids that follow the prompt."""
    opened = open_model(run, ctx)
    settings = GenerationSettings(max_new_tokens=NEW, sampling=Sampling(temperature=0))
    (row,) = generate(opened.model, [opened.tokenizer.encode(PROMPT).tolist()], settings)
    return list(row.tokens)


@pytest.mark.usefixtures("one_thread")
def test_trained_here_used_there_and_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, there, back = tmp_path / "run", tmp_path / "there", tmp_path / "back"
    with IndexedWriter(str(tmp_path / "text"), np.dtype(np.uint16)) as writer:
        writer.add_document(np.frombuffer(TEXT, dtype=np.uint8).astype(np.int64))
    flags = f"{RUN} --data-path {tmp_path / 'text'}"
    run_whole(1, f"{flags} --train-iters 50 --save {run}")
    assert main(["export-hf", str(run), "--output", str(there)]) == 0
    assert main(["import-hf", str(there), "--output", str(back)]) == 0
    assert capsys.readouterr().out.count("verified: logits") == 2

    tokenizer, model = AutoTokenizer.from_pretrained(there), AutoModelForCausalLM.from_pretrained(there)
    ids = tokenizer(PROMPT, return_tensors="pt")
    said = model.generate(**ids, max_new_tokens=NEW, do_sample=False)[0, ids["input_ids"].shape[1] :].tolist()
    ours = session_pool().call(goes_on, 4, (run,), layout={"tp": 2, "pp": 2})
    assert ours == [said] * 4 and len(set(said)) > 4

    losses = []
    for load in (run, back):
        save = tmp_path / f"on_from_{load.name}"
        run_whole(1, f"{flags} --load {load} --finetune --train-iters 3 --save {save}")
        losses.append(columns(save, "loss"))
    assert losses[0] == losses[1] and len(losses[0]) == 3
    assert losses[0][1] < columns(run, "loss")[1]
