"""Engines that announce themselves, beside those that are configured.

feed      from a directory's events to the instances that get calls and are looked at
state     what was known, in a file, for a start while the directory is away
adopt     what a member of the directory is to this gateway, or why it cannot be used
status    what operators see of it: /ready and /metrics
"""
