# SPDX-License-Identifier: Apache-2.0
"""Pretrain a GPT: `torchrun --nproc-per-node N pretrain_gpt.py --config FILE.yaml [--flags]`, or the same under srun."""

import sys

from megatron_core.training.pretrain import pretrain

if __name__ == "__main__":
    sys.exit(pretrain(sys.argv[1:]))
