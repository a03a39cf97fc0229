"""Engines that announce themselves, beside those that are configured.

feed      from a directory's events to the instances that get calls and are looked at
adopt     what a member of the directory is to this gateway, or why it cannot be used
status    what operators see of it: /ready and /metrics
"""
