"""What holds for every test: one thread to a process, and GPU tests only where there is a GPU."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; the workers share the cores

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a CUDA device, with the reason, where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and torch sees none"))
