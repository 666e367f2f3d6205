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
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def pairs(*, rows: int, seed: int, part: Part) -> list[tuple[str, str]]:
    made = generate_dates(rows=rows, seed=seed, part=part)
    chats = [row["messages"] for row in made]
    assert all([m["role"] for m in chat] == ["user", "assistant"] for chat in chats)
    return [(chat[0]["content"], chat[1]["content"]) for chat in chats]


def read_as_a_person(prompt: str) -> datetime.date:
    """The date in a prompt, read with no knowledge of the generator's forms."""
    text = prompt.lower().replace("iso 8601", "").replace("yyyy-mm-dd", "")
    if named := re.search(r"(\d+)[/.](\d+)[/.](\d{4}) \((day|month) first\)", text):
        first, second, year = map(int, named.groups()[:3])
        day, month = (first, second) if named[4] == "day" else (second, first)
        return datetime.date(year, month, day)
    if year_first := re.search(r"\b(\d{4})[/.](\d{2})[/.](\d{2})\b", text):
        return datetime.date(*map(int, year_first.groups()))
    (year,) = re.findall(r"\b\d{4}\b", text)
    (day,) = re.findall(r"\b(\d{1,2})(?:st|nd|rd|th)?\b", text)
    (month,) = re.findall(rf"\b({'|'.join(MONTHS)})[a-z]*\b", text.replace("month", ""))
    return datetime.date(int(year), MONTHS.index(month) + 1, int(day))


@given(
    seed=st.integers(-(2**40), 2**40),
    other=st.integers(-(2**40), 2**40),
    rows=st.integers(0, 400),
)
@settings(max_examples=20, deadline=None)
def test_the_parts_share_no_date_and_repeat_no_prompt(seed: int, other: int, rows: int) -> None:
    train = pairs(rows=rows, seed=seed, part="train")
    held_out = pairs(rows=rows, seed=other, part="held_out")
    assert len(train) == len(held_out) == rows
    assert not {answer for _, answer in train} & {answer for _, answer in held_out}
    assert len({prompt for prompt, _ in train}) == len({prompt for prompt, _ in held_out}) == rows


def test_the_parts_share_no_date_when_both_are_taken_whole() -> None:
    train = {answer for _, answer in pairs(rows=65_744, seed=3, part="train")}
    held_out = {answer for _, answer in pairs(rows=7_305, seed=3, part="held_out")}
    assert not train & held_out
    span = datetime.date(2100, 1, 1) - datetime.date(1900, 1, 1)
    assert len(train) + len(held_out) == span.days


def test_every_answer_is_the_date_that_the_prompt_names() -> None:
    for part in ("train", "held_out"):
        for prompt, answer in pairs(rows=4000, seed=11, part=part):
            assert answer == read_as_a_person(prompt).isoformat(), prompt


def test_a_named_weekday_is_the_date_s_own() -> None:
    named = 0
    for prompt, answer in pairs(rows=4000, seed=5, part="train"):
        pattern = rf"\b({'|'.join(WEEKDAYS)})(?:day|sday|nesday|rsday|urday)?\b"
        for weekday in re.findall(pattern, prompt.lower()):
            assert datetime.date.fromisoformat(answer).weekday() == WEEKDAYS.index(weekday), prompt
            named += 1
    assert named > 200


def test_ordinals_have_the_right_ending() -> None:
    found = {
        ordinal
        for prompt, _ in pairs(rows=5000, seed=0, part="train")
        for ordinal in re.findall(r"\b\d+(?:st|nd|rd|th)\b", prompt)
    }
    special = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}
    assert found == {f"{day}{special.get(day, 'th')}" for day in range(1, 32)}


def test_dates_are_written_in_many_forms() -> None:
    prompts = " ".join(prompt for prompt, _ in pairs(rows=5000, seed=0, part="train"))
    for form in (
        r"What is \d+ May \d{4} in ISO 8601\?",
        r"the \d+(st|nd|rd|th) of May \d{4}",
        r"May \d+, \d{4}",
        r"\w+day, \d+ \w+ \d{4}",
        r"\d{4}/\d\d/\d\d",
        r"\d{4}\.\d\d\.\d\d",
        r"\d\d/\d\d/\d{4} \(day first\)",
        r"\d\d/\d\d/\d{4} \(month first\)",
    ):
        assert re.search(form, prompts), form


def test_the_rows_are_the_same_on_every_platform_and_python_version() -> None:
    digests = {
        part: hashlib.sha256(
            json.dumps(list(generate_dates(rows=500, seed=0, part=part))).encode()
        ).hexdigest()
        for part in ("train", "held_out")
    }
    assert digests == {
        "train": "7fe4dac6e96f3ef623b5560b493e142e620c11ad4ea84397c9d2cba0cee5e7ac",
        "held_out": "d2c6839e60708f739dc5bfd82938a06a15b8273fc33bc3d19b1dd80c688ae51d",
    }


def test_fewer_rows_are_the_first_of_more() -> None:
    many = pairs(rows=50, seed=9, part="train")
    assert pairs(rows=20, seed=9, part="train") == many[:20]


def test_another_seed_gives_other_rows() -> None:
    assert pairs(rows=20, seed=1, part="train") != pairs(rows=20, seed=2, part="train")


@pytest.mark.parametrize(("part", "rows"), [("train", 65_745), ("held_out", 7_306), ("train", -1)])
def test_more_rows_than_there_are_is_an_error_at_the_call(part: Part, rows: int) -> None:
    with pytest.raises(ValueError, match=f"the {part} part has"):
        generate_dates(rows=rows, seed=0, part=part)


def test_the_command_prints_jsonl() -> None:
    command = [sys.executable, "-m", "tasks.prepare.dates", "--rows", "3", "--part", "held_out"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = [json.loads(line) for line in printed.splitlines()]
    assert rows == list(generate_dates(rows=3, seed=0, part="held_out"))
