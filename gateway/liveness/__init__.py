"""Liveness: what is known of an engine, brought to the legs that wait for it.

silence.py    one engine that is silent: what has been seen of it since
question.py   one question to it, out of turn: does it answer, and does anything move there?
detector.py   looks at all legs twice a second, asks silent ones, and ends legs that wait in vain

What all of it means is decided in scheduling/health/liveness.py. An event costs nothing here: what a
leg has heard is what the deadlines know of it anyway.
"""
