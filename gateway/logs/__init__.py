"""What the gateway writes to stderr.

calls     one line for each call, where that is wanted
lines     how a line looks: text for people, JSON for machines
"""
