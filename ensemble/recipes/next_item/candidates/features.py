"""What is known of a candidate item at the moment of a sequence: its popularity, its age, and what it is taken with.

A sequence's moment is the time of its last known event. Where users share a clock, everything here counts events before
that moment alone, of all users: nothing that happens at it or later changes a bit, but for the sequence's own known events.
Where they do not (times since each user's first item, or none), moments of two users cannot be compared, and the training
events are counted, as the published protocols do.
"""

from typing import Any

import numpy as np

from ensemble.arrow import ranges

NEAR = 3
"""Two items of a user are near if their places differ by so much at most."""
NUM_LAST = 3
"""Items at a history's end whose neighbours are looked at."""
NUM_RECENT = 20
"""Items at a history's end whose popularity is averaged."""
WINDOWS_DAYS = (30, 90)
MS_PER_DAY = 86_400_000.0
PAIR = np.int64(1 << 31)
"""Two items are one number, the first times this plus the second: items are int32."""

ALWAYS = {
    "popularity": ("log(1 + times that anyone took it)", ""),
    "popularity_less_usual": ("popularity, less the mean popularity of the user's last 20 items", ""),
    "next_last": ("log(1 + times that it came directly after the last item)", ""),
    "near_last": ("log(1 + times that it was within 3 places of the last item, before or after)", ""),
    "near_last_3": ("log(1 + the same of the last three items, summed)", ""),
    "cosine_last": ("times near the last item ÷ √(times taken × times the last item was)", ""),
    "cosine_last_3": ("the same of the last three items, summed", ""),
    "length": ("items that the user took before", "items"),
    "usual_popularity": ("mean popularity of the user's last 20 items", ""),
}
TIMED = {"days_since_previous": ("time between the user's last two items", "days")}
ON_A_COMMON_CLOCK = {
    "popularity_30": ("log(1 + times that anyone took it in 30 days)", ""),
    "popularity_90": ("log(1 + times that anyone took it in 90 days)", ""),
    "trend": ("log((1 + times in 30 days) ÷ (1 + a third of the times in 90))", ""),
    "age": ("time since it was first taken", "days"),
    "days_since_taken": ("time since it was last taken by anyone", "days"),
}


def meanings(has_time: bool, common_clock: bool) -> dict[str, tuple[str, str]]:
    """The features in their order, each with what it means and its unit."""
    return ALWAYS | (TIMED if has_time else {}) | (ON_A_COMMON_CLOCK if common_clock else {})


class PastEvents:
    """What had happened at any moment, as sorted arrays in which a search counts.

    item, time : (num_events,), one user after the other, oldest first. user : (num_events,), a number for each user, or -1
    for those whose events make no sequence. is_training : (num_events,) bool.
    """

    def __init__(
        self,
        item: np.ndarray,
        time: np.ndarray,
        user: np.ndarray,
        is_training: np.ndarray,
        *,
        has_time: bool,
        common_clock: bool,
    ):
        self.item, self.time, self.has_time, self.common_clock = item.astype(np.int64), time, has_time, common_clock
        # With a common clock all events count, from their moment on; else those of training, from the beginning on
        counts = np.ones(len(item), bool) if common_clock else is_training
        self.moments, tick = np.unique(time if common_clock else np.zeros_like(time), return_inverse=True)
        num_ticks = len(self.moments) + 1
        self.taken = EventCounts(self.item[counts], tick[counts], num_ticks)
        pairs = []
        for apart in range(1, NEAR + 1):
            later = np.flatnonzero((user[apart:] == user[:-apart]) & (user[apart:] >= 0) & counts[apart:]) + apart
            pairs.append((self.item[later - apart] * PAIR + self.item[later], tick[later]))
        self.followed = EventCounts(*pairs[0], num_ticks)
        pair, tick = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        self.near = EventCounts(self._unordered(*np.divmod(pair, PAIR)), tick, num_ticks)

    def _unordered(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.minimum(one, other) * PAIR + np.maximum(one, other)

    def features(self, begin: np.ndarray, end: np.ndarray, owner: np.ndarray, item: np.ndarray) -> dict[str, np.ndarray]:
        """Of each of n candidates, in the order of `meanings`: float32 (n,), NaN for what is not known.

        begin, end : (num_sequences,), their known events. owner, item : (n,), the place of a candidate's sequence in these,
        and the candidate.
        """
        item = item.astype(np.int64)
        moment = self.time[end - 1]
        tick = np.searchsorted(self.moments, moment) if self.common_clock else np.ones(len(end), np.int64)
        count, first, last = self.taken.before(item, tick[owner])
        usual = self._usual_popularity(begin, end, tick)
        popularity = np.log1p(count)
        columns: dict[str, Any] = {
            "popularity": popularity,
            "popularity_less_usual": popularity - usual[owner],
            "length": (end - begin)[owner],
            "usual_popularity": usual[owner],
        }
        near, cosine = np.zeros(len(item), np.int64), np.zeros(len(item))
        for back in range(1, NUM_LAST + 1):
            there = end - back >= begin
            before = np.where(there, self.item[np.where(there, end - back, 0)], 0)
            times_before = self.taken.before(before, tick)[0]
            times_near = self.near.before(self._unordered(before[owner], item), tick[owner])[0]
            near = near + times_near
            cosine = cosine + times_near / np.sqrt(np.maximum(count, 1) * np.maximum(times_before, 1)[owner])
            if back == 1:
                times_next = self.followed.before(before[owner] * PAIR + item, tick[owner])[0]
                columns |= {"next_last": np.log1p(times_next), "near_last": np.log1p(near), "cosine_last": cosine}
        columns |= {"near_last_3": np.log1p(near), "cosine_last_3": cosine}
        if self.has_time:
            gap = (moment - self.time[np.maximum(end - 2, begin)]) / MS_PER_DAY
            columns["days_since_previous"] = np.where(end - begin > 1, gap, np.nan)[owner]
        if self.common_clock:
            columns |= self._of_the_clock(item, owner, moment, tick, count, first, last)
        return {name: columns[name].astype(np.float32) for name in meanings(self.has_time, self.common_clock)}

    def _usual_popularity(self, begin: np.ndarray, end: np.ndarray, tick: np.ndarray) -> np.ndarray:
        """The mean popularity, at its moment, of each sequence's last items."""
        at, owner = ranges(np.maximum(begin, end - NUM_RECENT), end)
        popularity = np.log1p(self.taken.before(self.item[at], tick[owner])[0])
        return np.bincount(owner, popularity, len(end)) / np.bincount(owner, minlength=len(end))

    def _of_the_clock(
        self,
        item: np.ndarray,
        owner: np.ndarray,
        moment: np.ndarray,
        tick: np.ndarray,
        count: np.ndarray,
        first: np.ndarray,
        last: np.ndarray,
    ) -> dict[str, np.ndarray]:
        recent = []
        for days in WINDOWS_DAYS:
            since = np.searchsorted(self.moments, moment - int(days * MS_PER_DAY))
            recent.append(count - self.taken.before(item, since[owner])[0])
        short, long = WINDOWS_DAYS
        known = count > 0
        return {
            f"popularity_{short}": np.log1p(recent[0]),
            f"popularity_{long}": np.log1p(recent[1]),
            "trend": np.log((recent[0] + 1) / (recent[1] * short / long + 1)),
            "age": np.where(known, moment[owner] - self.moments[first], np.nan) / MS_PER_DAY,
            "days_since_taken": np.where(known, moment[owner] - self.moments[last], np.nan) / MS_PER_DAY,
        }


class EventCounts:
    """How often each code had come before a tick of a clock, and when first and last; codes and ticks are 0 or more."""

    def __init__(self, code: np.ndarray, tick: np.ndarray, num_ticks: int):
        self.codes, number = np.unique(code, return_inverse=True)
        self._stride = np.int64(num_ticks + 1)
        self._key = np.sort(number * self._stride + tick)
        self._start = np.searchsorted(self._key, np.arange(len(self.codes)) * self._stride)

    def before(self, code: np.ndarray, tick: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The number of times strictly before `tick`, and the ticks of the first and last, which are 0 if there was none."""
        if not len(self.codes):
            return (np.zeros(len(code), np.int64),) * 3
        number = np.minimum(np.searchsorted(self.codes, code), len(self.codes) - 1)
        start = self._start[number]
        count = np.searchsorted(self._key, number * self._stride + tick) - start
        count[self.codes[number] != code] = 0
        known = count > 0
        ends = (self._key[np.where(known, at, 0)] % self._stride for at in (start, start + count - 1))
        first, last = (np.where(known, end, 0) for end in ends)
        return count, first, last
