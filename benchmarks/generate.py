# SPDX-License-Identifier: Apache-2.0
"""Generation beside transformers' generate: one model, the same prompts, greedy, fp32, both in turn.

    python benchmarks/generate.py [--batch-size 8 32] [--rounds 5] [--threads 2]

Llama's shape: 6 layers, hidden 512, 8 heads over 4 key/value heads, vocabulary 32000, prompts of 64 tokens, random
weights. transformers writes the model and our importer reads it. Prompts are of one length, since
transformers would pay for padding. Ratios within one run are to be trusted, single figures are not.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_core.checkpoint.huggingface.import_model import import_model, read_architecture
from megatron_core.inference.generate import GenerationSettings, generate
from megatron_core.inference.model import InferenceModel
from megatron_core.inference.open_model import open_model
from megatron_core.inference.sampling import Sampling
from megatron_core.parallel.context import single_process_context

GOAL = 1.2
PROMPT_TOKENS = 64
VOCABULARY = 32000


def their_model() -> LlamaForCausalLM:
    """Random weights, larger than at the start of training, so that no two logits are nearly equal."""
    torch.manual_seed(1234)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        initializer_range=0.05,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def our_model(theirs: LlamaForCausalLM) -> InferenceModel:
    """The same weights through both programs' files."""
    with tempfile.TemporaryDirectory() as folder:
        source, run = Path(folder) / "theirs", Path(folder) / "ours"
        theirs.save_pretrained(source)
        import_model(source, run, read_architecture(source), report=lambda nbytes: None)
        return open_model(run, single_process_context()).model


def runs(batch: int, new_tokens: int, theirs: LlamaForCausalLM, ours: InferenceModel) -> dict[str, Callable]:
    """Functions that generate and return the new tokens of each row."""
    prompts = torch.randint(VOCABULARY, (batch, PROMPT_TOKENS), generator=torch.Generator().manual_seed(batch))
    settings = GenerationSettings(
        max_new_tokens=new_tokens, sampling=Sampling(temperature=0), batch_size=batch, end_ids=frozenset()
    )
    their_settings = GenerationConfig(
        max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, use_cache=True, pad_token_id=0
    )

    def run_ours() -> list[list[int]]:
        return [row.tokens for row in generate(ours, prompts.tolist(), settings)]

    def run_theirs() -> list[list[int]]:
        with torch.inference_mode():
            found = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=their_settings)
        return found[:, PROMPT_TOKENS:].tolist()

    return {"ours": run_ours, "transformers": run_theirs}


def compare(batch: int, rounds: int, new_tokens: int, functions: dict[str, Callable]) -> None:
    """Both in turn; prints tokens a second and the median of the rounds' ratios."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    tokens: dict[str, list[list[int]]] = {}
    for round_ in range(rounds + 1):
        for name, function in functions.items():
            begin = time.perf_counter()
            tokens[name] = function()
            if round_ > 0:  # the first warms up
                seconds[name].append(time.perf_counter() - begin)
        print(f"  round {round_}/{rounds}", end="\r", flush=True)
    equal = sum(a == b for a, b in zip(tokens["ours"], tokens["transformers"]))
    speeds = {name: batch * new_tokens / statistics.median(values) for name, values in seconds.items()}
    ratio = statistics.median(theirs / ours for ours, theirs in zip(seconds["ours"], seconds["transformers"]))
    print(
        f"batch {batch:3}, {torch.get_num_threads()} threads: ours {speeds['ours']:7.0f} tok/s, transformers "
        f"{speeds['transformers']:7.0f} tok/s, ratio {ratio:.2f} (goal {GOAL}), {equal} of {batch} rows with the same "
        f"{new_tokens} tokens"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2, help="1 where others use the machine")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    theirs = their_model()
    ours = our_model(theirs)
    for batch in arguments.batch_size:
        compare(batch, arguments.rounds, arguments.new_tokens, runs(batch, arguments.new_tokens, theirs, ours))


if __name__ == "__main__":
    main()
