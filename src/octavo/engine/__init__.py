"""Scheduler, runner, step loop, and the LLM class."""
