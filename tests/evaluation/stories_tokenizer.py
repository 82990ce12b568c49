# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of the real small model, from llama2.c's pieces and scores, as transformers reads one."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

_SPECIAL = ("<unk>", "<s>", "</s>")
BOS = 1


def write_tokenizer(pieces: Path, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json in `folder`; every text begins with <s>, as Llama's do."""
    held = json.loads(pieces.read_text())
    texts = [piece.encode("latin-1").decode("utf-8", "replace").replace(" ", "▁") for piece in held["vocab"]]
    ids = {text: index for index, text in enumerate([*_SPECIAL, *texts[3:]])}
    scores = dict(zip(ids.values(), held["scores"]))
    merges = [
        (scores[index], text[:cut], text[cut:])
        for text, index in ids.items()
        for cut in range(1, len(text))
        if text[:cut] in ids and text[cut:] in ids and not text.startswith("<")
    ]
    merges.sort(key=lambda merge: -merge[0])
    bpe = models.BPE(ids, [(left, right) for _, left, right in merges], unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", BOS)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
