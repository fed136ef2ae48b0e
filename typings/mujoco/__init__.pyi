"""MuJoCo ships no type information: every name of it is taken as it comes."""

from typing import Any

def __getattr__(name: str) -> Any: ...
