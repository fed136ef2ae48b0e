"""The learner's benchmark itself, on a tiny setting."""

import pytest
import torch

from benchmarks import learner


def test_every_learner_is_timed_on_one_thread_and_the_number_of_threads_comes_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("stable_baselines3", reason='needs pip install "robolearn[interop]"')
    monkeypatch.setattr(learner, "ROWS", 300)
    monkeypatch.setattr(learner, "STEPS", 2)
    threads = torch.get_num_threads()
    measured = learner.rates(rounds=1)
    assert torch.get_num_threads() == threads
    assert len(measured) == 3
    assert all(rate > 0 for rate in measured.values())
    monkeypatch.setattr(learner, "rates", lambda: {"robolearn": 30.0, learner.OTHER: 10.0})
    learner.show()
    assert "3" in capsys.readouterr().out
