"""Features of a candidate item at the time of a sequence: popularity, age, and co-occurrence with the sequence's items.

The time of a sequence is that of the last event before its target. If the times of all users are on a common clock, features
count only events of all users before that time, so that later events have no influence. Otherwise (times since each user's
first item, or no times), the times of two users cannot be compared. Then the training events are counted, as in published
protocols.
"""

from typing import Any

import numpy as np

from ensemble.arrow import ranges

NEAR = 3
"""Two items of a user are near each other if their positions in the sequence differ by at most this number."""
NUM_LAST = 3
"""Number of last items of a history whose co-occurrences are features."""
NUM_RECENT = 20
"""Number of last items of a history whose popularity is averaged."""
WINDOWS_DAYS = (30, 90)
"""Lengths of the windows in which recent events are counted."""
MS_PER_DAY = 86_400_000.0
PAIR = np.int64(1 << 31)
"""Two int32 items are stored as one number: the first times this, plus the second."""

ALWAYS = {
    "popularity": ("log(1 + times that the item was taken)", ""),
    "popularity_less_usual": ("popularity minus the mean popularity of the user's last 20 items", ""),
    "next_last": ("log(1 + times that the item came directly after the user's last item)", ""),
    "near_last": ("log(1 + times that the item was within 3 places of the user's last item)", ""),
    "near_last_3": ("log(1 + times that the item was within 3 places of the user's last three items, summed)", ""),
    "cosine_last": ("times within 3 places of the user's last item ÷ √(product of the times that each was taken)", ""),
    "cosine_last_3": ("sum of times within 3 places ÷ √(product of times taken) over the user's last three items", ""),
    "length": ("items that the user took before", "items"),
    "usual_popularity": ("mean popularity of the user's last 20 items", ""),
}
TIMED = {"days_since_previous": ("time between the user's last two items", "days")}
ON_A_COMMON_CLOCK = {
    "popularity_30": ("log(1 + times that the item was taken in the last 30 days)", ""),
    "popularity_90": ("log(1 + times that the item was taken in the last 90 days)", ""),
    "trend": ("log((1 + times taken in the last 30 days) ÷ (1 + a third of the times taken in the last 90 days))", ""),
    "age": ("time since the item was first taken", "days"),
    "days_since_taken": ("time since the item was last taken by any user", "days"),
}


def meanings(has_time: bool, common_clock: bool) -> dict[str, tuple[str, str]]:
    """The meaning and the unit of each feature, in the order of the columns."""
    return ALWAYS | (TIMED if has_time else {}) | (ON_A_COMMON_CLOCK if common_clock else {})


class PastEvents:
    """Counts of the events before any time, by binary search in sorted arrays.

    item, time : (num_events,), sorted by user, then by time. user : (num_events,), the number of the user, or -1 for events
    that are in no sequence. is_training : (num_events,) bool, whether an event is in a training sequence.
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
        # With a common clock, each event is counted after its time; otherwise training events are counted at all times
        is_counted = np.ones(len(item), bool) if common_clock else is_training
        self.moments, tick = np.unique(time if common_clock else np.zeros_like(time), return_inverse=True)
        num_ticks = len(self.moments) + 1
        self.taken = EventCounts(self.item[is_counted], tick[is_counted], num_ticks)
        pairs = []
        for apart in range(1, NEAR + 1):
            later = np.flatnonzero((user[apart:] == user[:-apart]) & (user[apart:] >= 0) & is_counted[apart:]) + apart
            pairs.append((self.item[later - apart] * PAIR + self.item[later], tick[later]))
        self.followed = EventCounts(*pairs[0], num_ticks)
        pair, tick = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        self.near = EventCounts(_unordered(*np.divmod(pair, PAIR)), tick, num_ticks)

    def features(self, begin: np.ndarray, end: np.ndarray, owner: np.ndarray, item: np.ndarray) -> dict[str, np.ndarray]:
        """The features of n candidates, in the order of `meanings`, each float32 (n,), with NaN for unknown values.

        begin, end : (num_sequences,), the range of each sequence's events before its target. owner : (n,), the index of each
        candidate's sequence. item : (n,), the candidates.
        """
        item = item.astype(np.int64)
        moment = self.time[end - 1]
        tick = np.searchsorted(self.moments, moment) if self.common_clock else np.ones(len(end), np.int64)
        count, first, last = self.taken.before(item, tick[owner])
        # The mean popularity of each sequence's last items at the time of the sequence
        event, sequence = ranges(np.maximum(begin, end - NUM_RECENT), end)
        popularity = np.log1p(self.taken.before(self.item[event], tick[sequence])[0])
        usual = np.bincount(sequence, popularity, len(end)) / np.bincount(sequence, minlength=len(end))
        popularity = np.log1p(count)
        columns: dict[str, Any] = {
            "popularity": popularity,
            "popularity_less_usual": popularity - usual[owner],
            "length": (end - begin)[owner],
            "usual_popularity": usual[owner],
        }
        near, cosine = np.zeros(len(item), np.int64), np.zeros(len(item))
        for back in range(1, NUM_LAST + 1):
            exists = end - back >= begin
            before = np.where(exists, self.item[np.where(exists, end - back, 0)], 0)
            times_before = self.taken.before(before, tick)[0]
            times_near = self.near.before(_unordered(before[owner], item), tick[owner])[0]
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
            recent = {}
            for days in WINDOWS_DAYS:
                since = np.searchsorted(self.moments, moment - int(days * MS_PER_DAY))
                recent[days] = count - self.taken.before(item, since[owner])[0]
            columns |= {f"popularity_{days}": np.log1p(times) for days, times in recent.items()}
            short, long = WINDOWS_DAYS
            columns["trend"] = np.log((recent[short] + 1) / (recent[long] * short / long + 1))
            for name, ends in (("age", first), ("days_since_taken", last)):
                days_ago = (moment[owner] - self.moments[ends]) / MS_PER_DAY
                columns[name] = np.where(count > 0, days_ago, np.nan)
        return {name: columns[name].astype(np.float32) for name in meanings(self.has_time, self.common_clock)}


def _unordered(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The code of each pair of items, which is the same for both orders of the two."""
    return np.minimum(first, second) * PAIR + np.maximum(first, second)


class EventCounts:
    """Counts the occurrences of a code before a tick, and gives the ticks of the first and the last of them.

    A code is the number of an item or of a pair of items, a tick the rank of a time among all times; both are 0 or more.
    """

    def __init__(self, code: np.ndarray, tick: np.ndarray, num_ticks: int):
        self.codes, number = np.unique(code, return_inverse=True)
        self._stride = np.int64(num_ticks + 1)
        self._key = np.sort(number * self._stride + tick)
        self._start = np.searchsorted(self._key, np.arange(len(self.codes)) * self._stride)

    def before(self, code: np.ndarray, tick: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The number of occurrences strictly before `tick`, and the ticks of the first and the last, 0 if there are none."""
        if not len(self.codes):
            return (np.zeros(len(code), np.int64),) * 3
        number = np.minimum(np.searchsorted(self.codes, code), len(self.codes) - 1)
        start = self._start[number]
        count = np.searchsorted(self._key, number * self._stride + tick) - start
        count[self.codes[number] != code] = 0
        known = count > 0
        ends = (self._key[np.where(known, index, 0)] % self._stride for index in (start, start + count - 1))
        first, last = (np.where(known, end, 0) for end in ends)
        return count, first, last
