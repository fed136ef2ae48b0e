"""The benchmarks themselves, on tiny settings: they have to run, and to count what they say they count."""

import pytest

from benchmarks import halfcheetah, stepping
from benchmarks.halfcheetah import Point
from robolearn.training import default_config


def test_stepping_names_every_task_and_its_ratio() -> None:
    measured = dict(stepping.rates(num_envs=8, steps=2, rounds=1))
    assert set(measured) == set(stepping.TASKS)
    for rates in measured.values():
        assert rates.raw > 0
        assert rates.ratio == pytest.approx(rates.env / rates.raw)


def test_our_training_is_evaluated_on_the_way_and_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halfcheetah, "EPISODES", 1)
    points = list(halfcheetah.ours(default_config("HalfCheetah", steps=12_288), every=8192))
    assert [point.steps for point in points] == [8192, 12_288]
    assert 0 < points[0].seconds < points[1].seconds


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_the_other_training_is_evaluated_in_the_same_way(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stable_baselines3", reason='needs pip install "robolearn[interop]"')
    monkeypatch.setattr(halfcheetah, "EPISODES", 1)
    model = getattr(halfcheetah, f"stable_baselines3_{algo}")()
    points = list(halfcheetah.stable_baselines3(model, 1024, every=512))
    assert [point.steps for point in points] == [512, 1024]


def test_the_first_point_at_a_score_is_where_the_clock_stops(capsys: pytest.CaptureFixture[str]) -> None:
    points = [Point(1, 1.0, 10.0), Point(2, 2.0, 30.0), Point(3, 3.0, 20.0)]
    assert halfcheetah.shown(iter(points), "some", until=25.0) == points[:2]
    assert halfcheetah.first(points, 25.0) == points[1]
    assert halfcheetah.first(points, 99.0) is None
    assert capsys.readouterr().out.count("some:") == 2


def test_the_verdict_says_who_did_not_arrive() -> None:
    ours, theirs = [Point(10, 2.0, 30.0)], [Point(10, 3.0, 1.0), Point(20, 9.0, 35.0)]
    assert halfcheetah.verdict(ours, theirs, 30.0) == "robolearn 2 s, Stable-Baselines3 9 s: 4.5 times sooner"
    assert "did not reach it in 3 s: more than 1.5 times sooner" in halfcheetah.verdict(ours, theirs[:1], 30.0)
    assert halfcheetah.verdict(ours, theirs, 40.0) == "robolearn did not reach 40 in 10 steps"
