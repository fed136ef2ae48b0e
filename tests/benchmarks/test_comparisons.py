"""The benchmarks themselves, on tiny settings: they have to run, and to count what they say they count."""

import pytest

from benchmarks import halfcheetah, stepping
from benchmarks.halfcheetah import Point


def test_stepping_names_every_task_and_its_ratio() -> None:
    measured = dict(stepping.rates(num_envs=8, steps=2, rounds=1))
    assert set(measured) == set(stepping.TASKS)
    for rates in measured.values():
        assert rates.raw > 0
        assert rates.ratio == pytest.approx(rates.env / rates.raw)


def test_our_training_is_evaluated_on_the_way_and_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halfcheetah, "EPISODES", 1)
    points = list(halfcheetah.ours(12_288, every=8192))
    assert [point.steps for point in points] == [8192, 12_288]
    assert 0 < points[0].seconds < points[1].seconds


def test_the_other_training_is_evaluated_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stable_baselines3", reason='needs pip install "robolearn[interop]"')
    monkeypatch.setattr(halfcheetah, "EPISODES", 1)
    points = list(halfcheetah.stable_baselines3(1024, every=512))
    assert [point.steps for point in points] == [512, 1024]


def test_the_first_point_at_a_score_is_where_the_clock_stops(capsys: pytest.CaptureFixture[str]) -> None:
    points = [Point(1, 1.0, 10.0), Point(2, 2.0, 30.0), Point(3, 3.0, 20.0)]
    assert halfcheetah.shown(iter(points), "some", until=25.0) == points[:2]
    assert halfcheetah.first(points, 25.0) == points[1]
    assert halfcheetah.first(points, 99.0) is None
    assert capsys.readouterr().out.count("some:") == 2
