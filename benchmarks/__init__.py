"""Measured comparisons with other libraries; ``python -m benchmarks`` prints them all."""
