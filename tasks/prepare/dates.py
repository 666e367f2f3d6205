"""Chat rows about dates, made by a seeded generator: the quickstart's own data.

A user writes a date as people do (`the 3rd of May 2011`, `Tue 3 May 2011`, `2011/05/03`) and asks
for ISO 8601; the assistant answers exactly `2011-05-03`. Every form names its day without doubt: a
numeric date that could be read in two ways says which order it has.

    python -m tasks.prepare.dates --rows 5 --part held_out
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Iterator
from random import Random
from typing import Literal, TypedDict

Part = Literal["train", "held_out"]

_DAYS = range(
    datetime.date(1900, 1, 1).toordinal(),
    datetime.date(2100, 1, 1).toordinal(),
)
_HELD_OUT_EVERY = 10

_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_FORMS = (
    "{day} {month} {year}",
    "{day} {month} {year}",
    "{day} {month}, {year}",
    "{day} {mon} {year}",
    "{day}-{mon}-{year}",
    "{day:02}-{upper_mon}-{year}",
    "{day} {lower_month} {year}",
    "{nth} {month} {year}",
    "{nth} of {month} {year}",
    "the {nth} of {month} {year}",
    "the {nth} of {month}, {year}",
    "{month} {day}, {year}",
    "{month} {day} {year}",
    "{mon} {day}, {year}",
    "{month} {nth}, {year}",
    "{month} {nth} {year}",
    "{month} the {nth}, {year}",
    "{weekday}, {day} {month} {year}",
    "{weekday}, {month} {day}, {year}",
    "{weekday} the {nth} of {month} {year}",
    "{wkd} {day} {mon} {year}",
    "{wkd}, {mon} {day}, {year}",
    "{year}/{number:02}/{day:02}",
    "{year}.{number:02}.{day:02}",
    "{day:02}/{number:02}/{year} (day first)",
    "{day:02}.{number:02}.{year} (day first)",
    "{number:02}/{day:02}/{year} (month first)",
)

_QUESTIONS = (
    "What is {date} in ISO 8601?",
    "What is {date} in ISO 8601?",
    "what's {date} in ISO 8601",
    "Write {date} in ISO 8601.",
    "Please write {date} as an ISO date.",
    "Convert {date} to ISO 8601.",
    "Convert to YYYY-MM-DD: {date}",
    "{date} as YYYY-MM-DD?",
    "{date} in ISO format, please.",
    "How do I write {date} in ISO 8601?",
    "ISO 8601 for {date}?",
    "ISO date: {date}",
)


class Message(TypedDict):
    """One message of a chat row."""

    role: str
    content: str


class ChatRow(TypedDict):
    """A row as it stands in a JSONL file of chats."""

    messages: list[Message]


def generate_dates(*, rows: int, seed: int, part: Part) -> Iterator[ChatRow]:
    """Make chat rows, the same for the same arguments on every platform and Python version.

    Every tenth day of the calendar from 1900 to 2099 belongs to `held_out`, the others to `train`,
    whatever the seed: no date is in both parts. A day is asked for once at most, so no prompt
    appears twice.

    Args:
        rows: Number of rows.
        seed: Decides which days are taken, in which order, form and phrasing.
        part: Which of the two disjoint parts the days come from.

    Returns:
        An iterator of rows `{"messages": [user, assistant]}`.

    Raises:
        ValueError: `rows` is negative, or more than the part has days.
    """
    days = [day for day in _DAYS if (day % _HELD_OUT_EVERY == 0) == (part == "held_out")]
    if not 0 <= rows <= len(days):
        raise ValueError(f"the {part} part has {len(days)} rows, not {rows}")
    # A seed of its own: with one, row i of both parts would have the same form and question.
    return _rows(days, rows, Random(2 * seed + (part == "held_out")))


def _rows(days: list[int], rows: int, random: Random) -> Iterator[ChatRow]:
    # Only `Random.random` is promised to stay the same from one Python version to the next.
    def below(limit: int) -> int:
        return int(random.random() * limit)

    for taken in range(rows):
        swap = taken + below(len(days) - taken)
        days[taken], days[swap] = days[swap], days[taken]
        date = datetime.date.fromordinal(days[taken])
        written = _write(date, _FORMS[below(len(_FORMS))])
        question = _QUESTIONS[below(len(_QUESTIONS))].format(date=written)
        yield {
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": date.isoformat()},
            ]
        }


def _write(date: datetime.date, form: str) -> str:
    month, weekday = _MONTHS[date.month - 1], _WEEKDAYS[date.weekday()]
    return form.format(
        year=date.year,
        number=date.month,
        month=month,
        mon=month[:3],
        lower_month=month.lower(),
        upper_mon=month[:3].upper(),
        day=date.day,
        nth=f"{date.day}{_suffix(date.day)}",
        weekday=weekday,
        wkd=weekday[:3],
    )


def _suffix(day: int) -> str:
    if day in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")


def main() -> None:
    """Print rows as JSONL."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=("train", "held_out"), default="train")
    arguments = parser.parse_args()
    for row in generate_dates(rows=arguments.rows, seed=arguments.seed, part=arguments.part):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
