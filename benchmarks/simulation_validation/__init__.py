"""Does the simulator say what happens? Real engines and a real gateway replay a piece of the trace.

    .venv/bin/python -m benchmarks.simulation_validation
    .venv/bin/python -m benchmarks.simulation_validation --slow-motion 4     # on a busy machine
    .venv/bin/python -m benchmarks.simulation_validation --batch-share 0.5 --decode-concurrency 6 --give-way 2

    fleet.py         reference engines (processes) with a pace, and a gateway in front of them
    piece.py         the part of the trace that is replayed, and how it is made small
    asking.py        calls at their times, and what callers saw
    calibration.py   how fast these engines are, from calls one at a time
    __main__.py      the command: calibrate, replay, simulate, compare

Both sides have the same policy, the same calls at the same times, and as much KV memory. A prompt token of the
engines stands for SMALLER tokens of the trace, so that a block of the trace is a page of theirs; answers are
shortened as much as the replay is to be.
"""
