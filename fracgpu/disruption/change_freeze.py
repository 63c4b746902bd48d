"""Times in which nothing new may be moved: a cron schedule, a time zone and a duration.

The schedule has the five fields of crontab(5): minute, hour, day of month, month, day of week. Each
is ``*`` or a list of values and ranges, with a step if wanted (``*/15``, ``1-5``, ``mon-fri``). As
in crontab(5), a day matches by either day field if neither of them begins with ``*``.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final

LONGEST: Final = timedelta(days=7)
SHORTEST: Final = timedelta(minutes=1)

_DAY: Final = timedelta(days=1)
_FIELDS: Final = 5
_MOST_CHARS: Final = 200
_PART: Final = re.compile(r"(\*|[0-9a-z]+(?:-[0-9a-z]+)?)(?:/([0-9]{1,3}))?")
_DURATION: Final = re.compile(
    r"(?:([0-9]{1,4})d)?(?:([0-9]{1,5})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,7})s)?"
)
_MONTH_NAMES: Final = "jan feb mar apr may jun jul aug sep oct nov dec"
_MONTHS: Final = {name: number for number, name in enumerate(_MONTH_NAMES.split(), 1)}
_DAY_NAMES: Final = "sun mon tue wed thu fri sat"
_WEEKDAYS: Final = {name: number for number, name in enumerate(_DAY_NAMES.split())}
_SUNDAY_TOO: Final = 7
# The most days that each month can have.
_MONTH_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSchedule:
    """A parsed schedule: the values that match, each in ascending order.

    Attributes:
        weekdays: 0 is Sunday.
        either_day: a day matches by its number in the month or its day of the week; otherwise it
            has to match by both.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either_day: bool = False

    def on(self, day: date) -> bool:
        """Report whether the schedule fires on a day at all."""
        by_number = day.day in self.days
        by_weekday = day.isoweekday() % 7 in self.weekdays
        right_day = by_number or by_weekday if self.either_day else by_number and by_weekday
        return day.month in self.months and right_day


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFreeze:
    """A recurring time in which no move is begun.

    Attributes:
        text: the schedule as the administrator wrote it.
        zone: the time zone that the schedule's hours are meant in.
    """

    text: str
    schedule: CronSchedule
    zone: tzinfo
    duration: timedelta

    def until(self, now: datetime) -> datetime | None:
        """Return when the freeze that holds at *now* ends; None if there is none."""
        start = self._last_start(now)
        return start + self.duration if start and now < start + self.duration else None

    def _last_start(self, now: datetime) -> datetime | None:
        """Return the last time at or before *now* at which the freeze began, if it may matter."""
        day = now.astimezone(self.zone).date()
        first = (now - self.duration).astimezone(self.zone).date()
        while day >= first:
            starts = self._starts_on(day) if self.schedule.on(day) else ()
            last = max((start for start in starts if start <= now), default=None)
            if last is not None:
                return last
            day -= _DAY
        return None

    def _starts_on(self, day: date) -> Iterator[datetime]:
        for hour in self.schedule.hours:
            for minute in self.schedule.minutes:
                # When clocks are set back an hour comes twice, and the freeze begins at both.
                for fold in (0, 1):
                    local = datetime.combine(day, time(hour, minute, fold=fold), tzinfo=self.zone)
                    yield local.astimezone(UTC)


def parse_schedule(text: str) -> CronSchedule:
    """Parse a cron schedule.

    Raises:
        ValueError: the message names the field, what was there and what was wanted.
    """
    words = text.lower().split() if len(text) <= _MOST_CHARS else []
    if len(words) != _FIELDS:
        raise ValueError("want five fields: minute, hour, day of month, month, day of week")
    minute, hour, day, month, weekday = words
    weekdays = _values("day of week", weekday, low=0, high=_SUNDAY_TOO, called=_WEEKDAYS)
    found = CronSchedule(
        minutes=_values("minute", minute, low=0, high=59),
        hours=_values("hour", hour, low=0, high=23),
        days=_values("day of month", day, low=1, high=31),
        months=_values("month", month, low=1, high=12, called=_MONTHS),
        weekdays=tuple(sorted({number % _SUNDAY_TOO for number in weekdays})),
        either_day=not day.startswith("*") and not weekday.startswith("*"),
    )
    most = max(_MONTH_DAYS[number - 1] for number in found.months)
    if found.days[0] > most and not found.either_day:
        raise ValueError(f"day of month is {day!r}; the months in {month!r} have {most} at most")
    return found


def parse_duration(text: str) -> timedelta:
    """Parse ``90m``, ``8h``, ``1h30m`` or ``2d``.

    Raises:
        ValueError: the text is no such duration, or not within a minute and a week.
    """
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError("want days, hours, minutes or seconds in that order, e.g. 8h or 1h30m")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    found = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if not SHORTEST <= found <= LONGEST:
        raise ValueError("want 1m to 7d")
    return found


def _values(
    field: str, text: str, *, low: int, high: int, called: Mapping[str, int] | None = None
) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{field} is {text!r}; want *, values, ranges and steps")
        span, step = match.group(1), int(match.group(2) or 1)
        if span == "*":
            first, last = low, high
        else:
            ends = [_value(field, end, called or {}) for end in span.split("-")]
            # As in crontab(5), `5/10` is every tenth value from the fifth on.
            first, last = ends[0], high if match.group(2) and len(ends) == 1 else ends[-1]
        if not (low <= first <= last <= high and step):
            raise ValueError(
                f"{field} is {text!r}; want values from {low} to {high}, ranges that ascend and "
                "steps above 0"
            )
        found.update(range(first, last + 1, step))
    return tuple(sorted(found))


def _value(field: str, word: str, called: Mapping[str, int]) -> int:
    if word in called:
        return called[word]
    if not word.isdecimal() or len(word) > 2:  # noqa: PLR2004 - digits of the largest value
        names = f", or one of {', '.join(called)}" if called else ""
        raise ValueError(f"{field} is {word!r}; want a number{names}")
    return int(word)
