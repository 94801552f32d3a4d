"""One function per operation: reference (NumPy, the oracle) and native (the C++ extension)."""
