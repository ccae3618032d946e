"""Faster computation in float32 on a CPU."""
