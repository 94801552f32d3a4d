"""Architectures as data, and the decoder they are built from."""
