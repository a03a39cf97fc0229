"""Papers' experiments on their own traces, as far as a simulator can repeat them.

    .venv/bin/python -m benchmarks.papers [mooncake] [--trace FILE] [--calls N] [--scale 1,2,3]
    .venv/bin/python -m benchmarks.papers distserve [--calls N]

    mooncake.py    effective requests: first token within 30 s, others within 100, 200 and 300 ms on average
    distserve.py   goodput: calls a second and GPU of which 90 % are in time, by the steps that the authors measured

Engines are those of the simulator (lab/simulator/hardware.py) and not those of a paper, so shares compare ways of
serving with each other here, and not with a paper's. Dynamo's published comparison (prompts of 8,192 and answers of 1,024
tokens, 16 calls at a time for each GPU) names no targets, and keeps so many calls running; that is not repeated.
"""
