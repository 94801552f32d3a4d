"""Shared vocabulary: errors, parameters, configuration, host facts. Imports nothing else of Octavo."""
