"""Whether the gateway stays as it is when it serves for long, with engines that fail now and then.

__main__.py   starts engines and gateway, asks, sees what the gateway holds, judges
engines.py    a program: two prefill and two decode engines that answer at once, and fail by a
              seeded plan
load.py       asks at a fixed rate, and looks at every answer
faults.py     what an engine does wrong, and what a call may come to by it

python -m benchmarks.soak --minutes 30
"""
