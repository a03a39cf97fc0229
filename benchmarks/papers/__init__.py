"""Papers' experiments on their own traces, as far as a simulator can repeat them.

    .venv/bin/python -m benchmarks.papers [--trace FILE] [--calls N] [--scale 1,2,3]

    mooncake.py   effective requests: first token within 30 s, others within 100, 200 and 300 ms on average

Engines are those of the simulator (lab/simulator/hardware.py) and not those of a paper, so shares compare ways of
serving with each other here, and not with a paper's.
"""
