"""Gymnasium's MuJoCo v5 suite, batched: the same models, observations, rewards, ends and starts."""
