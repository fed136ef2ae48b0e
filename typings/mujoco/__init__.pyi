"""MuJoCo's compiled module comes without type information: whatever it offers is accepted."""

from typing import Any

def __getattr__(name: str) -> Any: ...
