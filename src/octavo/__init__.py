"""Octavo: an LLM inference engine that is fast on an ordinary CPU."""
