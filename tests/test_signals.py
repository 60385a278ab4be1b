"""Signals that stop a run: the first is recorded, repetitions within `ECHO_S` are ignored, a later one ends the process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ensemble import signals

SCRIPT = """
import sys, time
from ensemble import signals
signals.ECHO_S = {echo_s}
with signals.StopSignals() as stop:
    print("ready", flush=True)
    while not stop.received:
        time.sleep(0.01)
    print("asked", int(stop.received), flush=True)
    {after}
print("left", flush=True)
"""


NESTED = """
import os, signal, time
from ensemble import signals
def send(stop):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.3)
    print(int(stop.received), flush=True)
signals.ECHO_S = 60
with signals.StopSignals() as outer:
    with signals.StopSignals() as first:
        send(first)
    with signals.StopSignals() as second:
        print(int(second.received), flush=True)
        send(second)
    send(outer)
"""


@pytest.fixture
def start() -> Iterator[object]:
    started: list[subprocess.Popen[str]] = []

    def start(after: str, echo_s: float = 60.0) -> subprocess.Popen[str]:
        code = SCRIPT.format(after=after, echo_s=echo_s)
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", signals.STOP)
def test_a_signal_and_its_echoes_ask_once(start, number: signal.Signals) -> None:
    """A launcher passes on what a scheduler sent to all processes: the echo would kill the run while it saves."""
    process = start("time.sleep(0.5)")
    for _ in range(3):
        process.send_signal(number)
        time.sleep(0.1)
    shown, errors = process.communicate(timeout=30)
    assert (process.returncode, shown) == (0, f"asked {int(number)}\nleft\n")
    assert errors.count(number.name) == 1


@pytest.mark.parametrize("number", signals.STOP)
def test_a_second_signal_ends_the_process_even_while_it_waits(start, number: signal.Signals) -> None:
    """Only SIGKILL would stop a run that waits for a rank that never answers."""
    # A lock that is never released stands for a collective: the main thread runs no Python until it returns
    process = start("import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()", echo_s=0.2)
    process.send_signal(number)
    assert process.stdout.readline() == f"asked {int(number)}\n"
    time.sleep(0.5)
    process.send_signal(number)
    assert process.wait(timeout=30) == 128 + number


def test_a_second_signal_ends_a_process_whose_standard_error_is_closed(start) -> None:
    """In `train.py 2>&1 | tee log`, Ctrl-C also ends tee. Then a further signal would have no effect."""
    process = start("time.sleep(60)", echo_s=0.2)
    process.stderr.close()
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == f"asked {int(signal.SIGTERM)}\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 128 + signal.SIGTERM


def test_a_signal_counts_once_for_all_nested_contexts() -> None:
    """The next training of a refit would begin after a signal to stop, or the echo of the signal would end the process."""
    done = subprocess.run([sys.executable, "-c", NESTED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"{int(signal.SIGTERM)}\n" * 4)
    assert done.stderr.count("SIGTERM: saving after this step") == 1


def test_a_signal_at_the_end_of_a_context_counts() -> None:
    """The thread would read it too late: a fit would go on after a signal during the last tree of a member."""
    for _ in range(10):
        with signals.StopSignals() as stop:
            signal.raise_signal(signal.SIGUSR1)
        assert stop.received == signal.SIGUSR1


def test_handlers_are_given_back() -> None:
    """Ctrl-C would do nothing after a training in a notebook."""
    before = {number: signal.getsignal(number) for number in signals.STOP}
    with signals.StopSignals() as stop:
        assert signal.getsignal(signal.SIGINT) is not before[signal.SIGINT]
    assert {number: signal.getsignal(number) for number in signals.STOP} == before
    assert stop.received == 0


def test_a_handler_that_was_set_meanwhile_stays() -> None:
    """A rank that lost another one ignores SIGTERM while it reports this. The old handler would let the launcher end it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with signals.StopSignals():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_while_the_context_is_entered_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that Slurm stops while it starts would go on, and be killed before it saves."""
    original = signal.signal

    def and_send(number: int, handler: Any) -> Any:
        before = original(number, handler)
        if number == signal.SIGUSR1 and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)
        return before

    sent: list[int] = []
    monkeypatch.setattr(signal, "signal", and_send)
    with signals.StopSignals() as stop:
        deadline = time.monotonic() + 30
        while not stop.received and time.monotonic() < deadline:
            time.sleep(0.01)
        assert stop.received == signal.SIGUSR1


def test_a_signal_while_the_context_is_left_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that a scheduler stops at this moment would neither stop nor end."""
    original = signal.set_wakeup_fd

    def and_send(descriptor: int) -> int:
        before = original(descriptor)
        signal.raise_signal(signal.SIGUSR1)
        return before

    handled: list[int] = []
    handler = signal.signal(signal.SIGUSR1, lambda number, frame: handled.append(number))
    try:
        with signals.StopSignals() as stop:
            monkeypatch.setattr(signal, "set_wakeup_fd", and_send)
        assert stop.received or handled
    finally:
        signal.signal(signal.SIGUSR1, handler)
