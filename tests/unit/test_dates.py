from __future__ import annotations

import datetime
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.prepare.dates import Part, generate_dates

ROOT = Path(__file__).parents[2]
MONTHS = "january february march april may june july august september october november december"
MONTH_NUMBERS = {name[:3]: number for number, name in enumerate(MONTHS.split(), start=1)}


def pairs(*, rows: int, seed: int, part: Part) -> list[tuple[str, str]]:
    return [
        tuple(message["content"] for message in row["messages"])
        for row in generate_dates(rows=rows, seed=seed, part=part)
    ]
