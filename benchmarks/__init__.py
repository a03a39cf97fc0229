"""Measurements: each is a command, and RESULTS.md says what it gave."""
