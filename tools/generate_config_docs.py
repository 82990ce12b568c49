#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write docs/configuration.md anew: python tools/generate_config_docs.py"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from megatron_core.config.docs import render  # noqa: E402 - only importable from a checkout after the line above

if __name__ == "__main__":
    target = ROOT / "docs" / "configuration.md"
    target.write_text(render(), encoding="utf-8")
    print(f"wrote {target}")
