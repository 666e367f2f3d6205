"""All benchmarks behind docs/benchmarks.md, one after the other: `make bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

COMMANDS = (
    ("reuse.py",),
    ("stopping.py",),
    ("prepare_memory.py", "10000", "100000", "1000000"),
)

for command in COMMANDS:
    print(f"\n## {' '.join(command)}\n", flush=True)
    script = str(Path(__file__).with_name(command[0]))
    subprocess.run([sys.executable, script, *command[1:]], check=True)
