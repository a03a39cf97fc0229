"""`pdgate demo`: engines, the gateway and one question, all on this machine.

    plan        what was asked for, and whether it can be had
    queue       what decode-first needs beside engines
    ask         the question, through the official client
    story       what the gateway and the engines say happened, in words
    run         the show, and how far it is, on a terminal or in a log

Engines run as `python -m pdgate engine`, so nothing here imports them.
"""
