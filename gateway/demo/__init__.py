"""`pdgate demo`: engines, the gateway and one question, all on this machine.

    plan        what was asked for, and whether it can be had
    children    processes that surely end
    queue       what decode-first needs beside engines
    screen      progress, on a terminal and in a log
    ask         the question, through the official client
    story       what the gateway and the engines say happened, in words
    run         the show

Engines run as `python -m pdgate engine`, so nothing here imports them.
"""
