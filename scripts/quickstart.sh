#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a trained GPT: sets up .venv, prepares the text in data/, trains on 8 CPU processes
# (tensor 2 x pipeline 2 x data 2), stops half-way, goes on from the checkpoint in another layout, writes a little
# text and tells what came out. A second call trains anew and installs nothing.
#     scripts/quickstart.sh [FLAG ...]         flags of pretrain_gpt.py that override configs/demo_cpu.yaml
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

text=data/tinyshakespeare.txt
run=runs/demo
data=$run/data

scripts/setup_venv.sh

# The text is one document, and --split cuts between documents; so train and validation are two files from here on.
mkdir -p "$data"
bytes=$(($(wc -c <"$text")))
cut=$((bytes * 9 / 10))
for part in train valid; do
    if [[ $part == train ]]; then head -c "$cut" "$text"; else tail -c +$((cut + 1)) "$text"; fi >"$data/$part.txt"
    prefix=$data/${part}_text_document
    if [[ $prefix.idx -nt $text && -s $prefix.bin ]]; then
        continue
    fi
    .venv/bin/python tools/preprocess_data.py --input "$data/$part.txt" --output-prefix "$data/$part" \
        --tokenizer-type ByteTokenizer --workers 1
done

# A new run: metrics are appended to, and the curve below should be of this run alone.
rm -rf "$run/metrics.jsonl" "$run"/step_*
launch() {
    OMP_NUM_THREADS=1 .venv/bin/python -m torch.distributed.run --standalone --nproc-per-node 8 \
        pretrain_gpt.py --config configs/demo_cpu.yaml "$@"
}
{
    echo "quickstart: the first half, tensor 2 x pipeline 2 x data 2"
    launch --exit-interval 175 "$@"
    echo "quickstart: the second half from its checkpoint, tensor 1 x pipeline 4 x data 2"
    launch --load "$run" --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 "$@"
} 2>&1 | tee "$run/log.txt"

echo "quickstart: what it writes by now"
.venv/bin/python tools/generate.py "$run" --prompt "ROMEO:" --max-new-tokens 120 --temperature 0.8

.venv/bin/python tools/demo_summary.py --run "$run" --train-text "$data/train.txt" --valid-text "$data/valid.txt"
