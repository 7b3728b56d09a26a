"""What wakes a thread that sleeps (T5)."""

from __future__ import annotations

import threading

from penstock.alarm import Alarm


def test_rung_before_it_lies_down_it_does_not_sleep() -> None:
    alarm = Alarm()
    alarm.ring()
    alarm.ring()
    assert alarm.sleep(60)
    assert not alarm.sleep(0), "rung twice, it wakes once"


def test_it_wakes_who_sleeps() -> None:
    alarm = Alarm()
    woken: list[bool] = []
    sleeper = threading.Thread(target=lambda: woken.append(alarm.sleep()))
    sleeper.start()
    alarm.ring()
    sleeper.join(60)
    assert woken == [True]


def test_what_rang_before_does_not_count_when_it_is_cleared() -> None:
    alarm = Alarm()
    alarm.ring()
    alarm.clear()
    alarm.clear()
    assert not alarm.sleep(0)
    assert not alarm.sleep(-1)
