"""How much of the time that KV takes to move hides behind compute: push by layers, or at the end.

    .venv/bin/python -m benchmarks.overlap --rounds 9 --picture benchmarks/overlap.svg

    prefill.py     a prompt's compute, layer by layer, and its pushes through the mover process
    rounds.py      turns of compute alone, push at the end and push by layers; what was hidden
    timeline.py    one round as a picture

What is hidden is `1 - (by layers - compute alone) / transfer`, where `transfer` is what a push
at the end takes after compute; all three are of the same round. Whatever slows compute down
counts against it, and so does what else the machine does: this takes a quiet one. The pages that
arrived are compared byte by byte.
"""
