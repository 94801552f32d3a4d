"""Argument parsing only; wires the rest."""
