"""Checks of sizes that must be divisible, such as a batch by the number of ranks."""

from ensemble.errors import UserError


def check_multiple(name: str, value: int, divisor: int, divisor_name: str) -> None:
    """Raise `UserError` unless a setting is a positive multiple of `divisor`, which the message calls `divisor_name`."""
    if value < 1 or value % divisor:
        nearest = max(1, round(value / divisor)) * divisor
        raise UserError(f"{name}={value} must be a positive multiple of {divisor_name}: the nearest one is {nearest}")


def divisors(number: int, largest: int) -> list[int]:
    """The divisors of a positive number up to `largest`, in ascending order."""
    return [divisor for divisor in range(1, min(number, largest) + 1) if number % divisor == 0]
