"""Measuring instruments: the engine and its kernels, as fractions of what the machine can do."""
