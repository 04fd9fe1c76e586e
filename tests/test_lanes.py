"""Who sits in which lane when: every client once, in one go, the busy lanes first, none idle while somebody waits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mpipfl.descent import Step
from mpipfl.lanes import Lanes, Leg, Seats, waves

CASES = [[5], [4, 4, 4], [9, 5, 5, 3, 2, 1], [100, 2, 2, 2, 1], [7] * 5 + [1] * 9, list(range(30, 0, -1))]


def paid(steps: list[int], count: int) -> float:
    """Rows, steps and beginnings of so many lanes, the longest client first, each where one is free."""
    lanes, begins = [0] * count, set[int]()
    for wanted in steps:
        begins.add(min(lanes))
        lanes[lanes.index(min(lanes))] += wanted
    rows = sum(max(2, sum(now < length for length in lanes)) for now in range(max(lanes)))
    return rows + max(lanes) + 2 * len(begins)


def legs_of(lanes: Lanes) -> list[Leg]:
    """With batches that say nothing but how many lanes are at work."""
    lengths = lanes.length
    feed = (Step(int((lengths > now).sum()), *[torch.zeros(0)] * 3) for now in range(int(lengths[0])))
    return list(lanes.legs(feed))


def pairs(seats: Seats | None) -> list[tuple[int, int]]:
    """(lane, row) of each."""
    return [] if seats is None else list(zip(seats.lanes.tolist(), seats.rows.tolist(), strict=True))


@pytest.mark.parametrize("width", [2, 3, 8])
@pytest.mark.parametrize("steps", CASES, ids=str)
def test_every_client_makes_its_steps_in_order(steps: list[int], width: int) -> None:
    rows = np.arange(len(steps))[::-1] + 10
    wanted = dict(zip(rows.tolist(), steps, strict=True))
    seated: dict[int, int] = {}  # lane -> row
    made: dict[int, int] = dict.fromkeys(wanted, 0)
    waiting, over = list(wanted), set[int]()
    lanes = Lanes(rows, np.array(steps), width)
    most = min(width, len(steps))
    tried = [most, *(count for count in (4, 2) if count < most)]
    assert lanes.length.size == min(tried, key=lambda count: paid(steps, count))
    for leg in legs_of(lanes):
        begun = pairs(leg.begun)
        assert begun == sorted(begun)
        assert {row for _, row in begun} == set(waiting[: len(begun)]), "the longest first"
        waiting = waiting[len(begun) :]
        for lane, row in begun:
            assert lane not in seated
            seated[lane] = row
        assert not waiting or len(seated) == lanes.length.size, "nobody waits while a lane is free"
        active = leg.steps[0].active
        assert sorted(seated) == list(range(active)), "the busy lanes are the first"
        assert leg.rows.tolist() == ([seated[k] for k in range(active)] if active > 1 else [seated[0]] * 2)
        assert leg.number.tolist() == [made[row] for row in leg.rows.tolist()]
        for row in seated.values():
            made[row] += 1
        for lane, row in pairs(leg.ended):
            assert seated.pop(lane) == row and made[row] == wanted[row]
            over.add(row)
    assert over == set(wanted) and not seated


def test_a_long_client_does_not_train_alone_at_the_end() -> None:
    """Chunks of four would take 28 + 8 + 4 + 1 steps of the matrix, and be alone in 16 of them."""
    steps = np.array([28, 12, 10, 9, 8, 7, 6, 5, 4, 4, 3, 2, 1, 1])
    lanes = Lanes(np.arange(len(steps)), steps, 4)
    assert lanes.length[0] == 28
    assert lanes.length.sum() == steps.sum() == 100
    lonely = sum(leg.steps[0].active == 1 for leg in legs_of(lanes))
    assert lonely <= 28 - 72 // 3 + 1


def test_what_is_spread_is_found_at_its_time() -> None:
    steps = np.array([4, 3, 3, 2, 1])
    lanes = Lanes(np.arange(5), steps, 2)
    values = np.array([[10 * client + number for number in range(4)] for client in range(5)])
    out = np.full((2, int(lanes.length[0])), -1)
    lanes.spread(values, np.arange(5), out)
    for now, leg in enumerate(legs_of(lanes)):
        active = leg.steps[0].active
        assert out[:active, now].tolist() == (10 * leg.rows + leg.number)[:active].tolist()
        assert (out[active:, now] == -1).all()


def test_waves_are_bounded_but_fill_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpipfl.lanes.WAVE", 100)
    steps = np.array([20, 6, 5, 4, 3, 3, 2, 1, 1, 1])
    found = [list(range(10))[wave] for wave in waves(steps, 2, 10)]
    assert [i for wave in found for i in wave] == list(range(10))
    for wave in found:
        assert len(wave) <= 2 or 10 * steps[wave].sum() <= 100
    assert [len(wave) for wave in found[:2]] == [2, 2]
    monkeypatch.setattr("mpipfl.lanes.WAVE", 10**9)
    assert [list(range(10))[wave] for wave in waves(steps, 2, 10)] == [list(range(10))]
    assert list(waves(steps[:0], 2, 10)) == []
