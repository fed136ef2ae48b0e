"""gymnasium-robotics on a MuJoCo whose enums no longer equal NumPy integers."""

import importlib
from typing import Any

import mujoco
import numpy as np


class _IntegerEnums:
    """The module ``mujoco`` with the members of its enums as plain integers."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(mujoco, name)
        if name.startswith("mjt"):
            value = type(name, (), {member: int(number) for member, number in value.__members__.items()})
        setattr(self, name, value)
        return value


def mend() -> bool:
    """Let gymnasium-robotics compare what a model says with MuJoCo's enums; return whether that was needed.

    Its helpers ask ``model.jnt_type[i] in (mjJNT_HINGE, mjJNT_SLIDE)``, which is false for every joint since MuJoCo
    3.12, where an enum's member no longer equals a NumPy integer on its right. They see integers in place of the
    enums from here on; doing it again changes nothing.
    """
    helpers: Any = importlib.import_module("gymnasium_robotics.utils.mujoco_utils")
    hinge = mujoco.mjtJoint.mjJNT_HINGE
    if np.int32(int(hinge)) in (hinge,) or isinstance(helpers.mujoco, _IntegerEnums):
        return False
    helpers.mujoco = _IntegerEnums()
    return True
