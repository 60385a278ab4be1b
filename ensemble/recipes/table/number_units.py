"""Numbers with a unit, such as 74 bhp, $1,200 or 17 %, and times of day such as 13:45.

    unit = find(cells, allowed=0)         # '# bhp', where # stands for a number; TIME; or '' for neither
    remove(cells, unit)                   # the texts without the unit, times in hours: '74', '13.75'

The cells of a column must have the same unit: 74 and 98 are not the numbers of `74 bhp` and `98 kW`. Only K, M and B
(thousands, millions, billions) may differ, as in $537K and $56.7M, and the plural s, as in 1 day and 2 days.
"""

import re

import polars as pl

from ensemble.errors import UserError
from ensemble.recipes.table.dates import LOOKS_LIKE_A_DATE, sample_of
from ensemble.recipes.table.number_forms import BOTH, COMMA_GROUPS, DECIMAL_COMMA, PLAIN, WHOLE, respelled

TIME = "13:45, in hours"
DURATION = "45:30 (minutes and seconds) and 1:23:45, in hours"
"""The unit of a column with cells of two parts and of three, if one of two parts begins with a number above `LAST_HOUR`."""
WITH_SECONDS, LONG = "13:45:00, in hours", "45:30, in hours"
"""The units of other columns of times: with cells of three parts; and without such cells, if a cell begins with a number
above `LAST_HOUR`."""
TIMES = (TIME, DURATION, WITH_SECONDS, LONG)
NUMBER = r"[+-]?\d(?:[\d.,]*\d)?"
PARTS = rf"^[+-]?(\p{{L}}{{0,3}}\p{{Sc}}|[A-Z]{{3}}\s|Rs\.?|Rp\.?|kr\.?)?\s?{NUMBER}(\s?[^\d\s.,_][^\d]{{0,19}})?$"
"""Matches a number, which may have a currency before it, such as $, US$ or kr, and after it a unit without digits, of at
most 20 characters. A blank may be a no-break space. `_no` is no unit: 0_no and 1_yes are codes with their labels."""
SCALED = " with K, M or B"
"""The end of a unit whose cells have K, M or B, also bn and mn, or none of them; amounts of money also m and b."""
EXPONENTS = {"k": "e3", "m": "e6", "mn": "e6", "b": "e9", "bn": "e9"}
CODE = r"^\D*0\d"
"""Matches codes such as 007A, which are no numbers."""
CLOCK = (
    r"^(?:(?<day>-?\d{1,9}) days?,? \+?|(?<minus>[-−]))?"
    r"(?<hour>\d{1,3}):(?<minute>[0-5]\d)(?::(?<second>[0-5]\d(?:\.\d+)?))?(?:\s?(?<half>[AaPp])\.?[Mm]\.?)?$"
)
"""A time of day, or a duration. `-0:01:00`, and as pandas and Python write it `-1 days +23:59:00`, are one minute less than
0."""
WHOLE_DAYS = r"^-?\d{1,9} days?$"
"""Matches a duration in whole days. pandas writes all durations of a column to CSV like this if all are whole days."""
DAYS = ("# days", "# day")
"""The units of a column of such durations."""
ZERO = r"^0(?:[.,]0*)?$"
LAST_HOUR = 23
"""The last hour of a day: a greater number before a colon is no time of day."""
LIKE_A_NUMBER = "|".join(
    [
        r"^\PL*\d\PL*$",
        r"^[+-]?(?:\pL{0,3}\p{Sc})? ?\d[\d.,'’\s]*(?:k|K|M|B|[KMGT]i?B|[a-z]{2,4}|[A-Z]{3}|\s[a-zA-Z])$",
        r"^[+-]?\d[\d.,]*(?:\s?[ckm]?m[23]|°\s?[NESW]|D[+-]\d+)$",
        r"^\p{Sc}\s*-$",
        r"^(?:\d+ ?[a-z]{1,3} ?){2,3}$",
        r"^\d{4}[- ]?[Qq][1-4]$|^[Qq][1-4][-/ ]?\d{4}$|^\d{4}-?W\d\d$",
        r"^\pL{3} \pL{3} [ \d]\d \d\d:\d\d:\d\d ",
        LOOKS_LIKE_A_DATE,
        r"\b\d{1,2}(?:st|nd|rd|th|\.)?[-/ ]\pL{3,9}\.?[-/ ]\d{2}|\b\pL{3,9}\.? \d{1,2}(?:st|nd|rd|th)?,? \d{4}",
        r"^(?:\d{1,2}-\pL{3}|\pL{3}-\d{2}|\d{4}, \pL{3,9})$",
        r"^POINT ?\(|^\pL ?\+\d[\d.]*$",
    ]
)
"""Matches a text that has digits and no letters (12 %, 31/01/24), is a number with a unit (62 kg, $5M, 3h 8m, 85 m2,
45° N), one of Fortran (0.12D+01) or 0 as Excel writes it ($ -), or contains a date (31-JAN-24, 1. Mai 2024, Jan. 5th, 2024,
Mon Jan 19 04:44:54 2015), a quarter or week (2007-Q2, 2007-W05) or a part of a date (31-Jan, Jan-24, 1939, May), or is a
point, POINT (-73.9 40.7), or a lead (D+3)."""


def find(cells: pl.Series, allowed: float) -> str:
    """The unit of all but at most `allowed` of the cells, '' if there is none. Zeros need no unit."""
    known = respelled(cells.drop_nulls())
    sample = sample_of(known)
    if 2 * sample.str.contains(CLOCK).sum() > len(sample):
        is_long, has_three, begins_with_0 = _parts(known)
        unit = WITH_SECONDS if has_three.any() else LONG if is_long.any() else TIME
        if has_three.any() and is_long.any():
            if (has_three & begins_with_0).sum() > allowed:  # beside 0:59:30, 59:24 may be hours and minutes
                return ""
            unit = DURATION
    elif sample.str.contains(CODE).any():
        return ""
    else:
        parts = sample.str.extract_groups(PARTS).struct.unnest().fill_null("").filter(sample.str.contains(PARTS))
        units = (parts["1"] + "#" + parts["2"]).filter(parts["1"] + parts["2"] != "")
        if units.is_empty():
            return ""
        unit = units.mode().sort()[0]
        prefix, suffix = unit.split("#", 1)
        may_be_scaled = suffix.strip().lower() in ("", *EXPONENTS) and (prefix or not _may_be_units(known))
        if may_be_scaled:  # other letters may come after the sample, as in a sorted table
            letters = known.str.extract(r"\d\s?(\D+)$").str.to_lowercase().unique()
            if len({EXPONENTS[letter] for letter in letters if letter in EXPONENTS}) > 1:
                unit = f"{prefix}#{SCALED}"
    has_no_unit = (remove(known, unit) == known) & ~known.str.contains(ZERO if is_required(unit) else f"^{NUMBER}$")
    return unit if has_no_unit.sum() <= allowed else ""


def _parts(cells: pl.Series) -> tuple[pl.Series, pl.Series, pl.Series]:
    """Which cells are times of two parts above `LAST_HOUR`, have three parts, and begin with 0; (num_rows,) bool each."""
    parts = cells.str.extract_groups(CLOCK).struct.unnest()
    first, has_three = parts["hour"].cast(pl.Int64).fill_null(-1), parts["second"].is_not_null()
    return (first > LAST_HOUR) & ~has_three, has_three, first == 0


def refuse_two_scales(column: str, cells: pl.Series, unit: str) -> None:
    """Raise `UserError` if new rows have times such as 59:24, and other new rows or training have times such as 1:05:10, or
    the reverse; not if training had both. unit : that of training."""
    is_long, has_three, _ = _parts(cells)
    are_both = (unit == LONG or is_long.any()) and (unit == WITH_SECONDS or has_three.any())
    if unit in TIMES and unit != DURATION and are_both:
        first = cells.filter(is_long | has_three)[0]
        raise UserError(
            f"the column '{column}' holds '{first}', and beside times such as 1:05:10, 59:24 may be minutes and seconds: "
            "write all times of the new rows with as many parts as in training"
        )


def _may_be_units(known: pl.Series) -> bool:
    """Whether letters after numbers without a currency may be units such as metres or bytes, not millions or billions: m and
    b may, and B if all numbers before it are whole, as in 100B beside 12.5M."""
    has_bytes = known.str.contains(r"\d\s?B$").any() and not known.str.contains(r"[.,]\d+\s?B$").any()
    return has_bytes or known.str.contains(r"\d\s?[mb]$").any()


def remove(cells: pl.Series, unit: str) -> pl.Series:
    """The texts without the unit, times as hours, or with a unit of `DAYS` as days. Texts without this unit, such as plain
    numbers, are unchanged."""
    if unit in TIMES:
        hours, has_second, _ = _hours(cells)
        if unit == DURATION:
            hours = hours.zip_with(has_second, hours / 60)
        return cells.zip_with(hours.is_null(), hours.cast(pl.String))
    if unit in DAYS:  # those with a time of day, without a decimal mark: its meaning depends on the other cells
        hours, _, has_day = _hours(cells)
        billionths = (hours / 24 * 1e9).round().cast(pl.Int64).cast(pl.String) + "e-9"
        cells = cells.zip_with(cells.str.contains(WHOLE_DAYS) | ~has_day, billionths)
    if not unit:
        return cells
    if unit.endswith(SCALED):
        prefix = re.escape(unit.removesuffix(f"#{SCALED}").strip())
        parts = cells.str.extract_groups(rf"^([+-]?){prefix}\s?({NUMBER})\s?(?i:(k|mn?|bn?))?$").struct.unnest()
        exponents = parts["3"].str.to_lowercase().replace(EXPONENTS).fill_null("")
        return cells.zip_with(parts["2"].is_null(), parts["1"] + parts["2"] + exponents)
    prefix, suffix = (re.escape(part.strip()) for part in unit.split("#", 1))  # a unit may be # too
    suffix = re.sub(r"([^\W\d_]{3,}?)s?$", r"\1s?", suffix)  # 1 day and 2 days
    return cells.str.replace(rf"^([+-]?){prefix}\s?({NUMBER})\s?{suffix}$", "${1}${2}")


def _hours(cells: pl.Series) -> tuple[pl.Series, pl.Series, pl.Series]:
    """Times of day and durations in hours, null for other texts; and which have seconds, and days."""
    parts = cells.str.replace(WHOLE_DAYS, "${0} 00:00:00").str.extract_groups(CLOCK).struct.unnest()
    parts = parts.cast(dict.fromkeys(("day", "hour", "minute", "second"), pl.Float64))
    half, day = pl.col("half").str.to_lowercase(), pl.col("day").fill_null(0)
    hour = pl.when(half.is_null()).then(pl.col("hour")).otherwise(pl.col("hour") % 12 + 12 * (half == "p"))
    second = pl.col("second").fill_null(0)
    sign = pl.when(pl.col("minus").is_null()).then(1).otherwise(-1)
    hours = parts.select(24 * day + sign * (hour + pl.col("minute") / 60 + second / 3600)).to_series()
    return hours, parts["second"].is_not_null(), parts["day"].is_not_null()


def is_required(unit: str) -> bool:
    """Whether numbers must have the unit: beside 12.8K, 900 may be thousands too. Beside 12.8K and 1.2M it is 900."""
    return unit not in ("", f"#{SCALED}")


def form_of(unit: str, numbers: str) -> str:
    """The form of numbers with a unit, such as `$1,234.5`. numbers : their form without it."""
    return unit if unit in TIMES else unit.replace("#", numbers, 1) or numbers


def split(form: str) -> tuple[str, str]:
    """The unit, '' for none, and the form of the numbers without it."""
    if form in TIMES:
        return form, PLAIN
    numbers = next((numbers for numbers in (BOTH, COMMA_GROUPS, DECIMAL_COMMA, PLAIN, WHOLE) if numbers in form), PLAIN)
    return form.replace(numbers, "#") if form not in ("", numbers) else "", numbers
