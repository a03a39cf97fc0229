"""KV between devices of one host, beside a bare copy: `python -m benchmarks.device --device cuda:0`.

    __main__.py    the cases, in one run, and the table of them
    owner.py       the process that owns the other end
    push.py        a prompt pushed layer by layer while it is computed

All ratios are of figures of the same run. On the fake device it shows that it works, and no more.
"""
