"""Where the time of a call goes.

    parts.py      which part of the gateway a stack is in
    samples.py    a thousand times a second: where the path is, without sockets (`benchmarks/guard`)
    sockets.py    CPU time of the same calls over real sockets, by user and kernel
    peer.py       the other ends of these sockets, in a process of its own
    shares.py     both put together
    __main__.py   a table of docs/performance.md, written anew

What the same calls take over sockets, less what the path takes without them, is the event loop's;
and the kernel's is what the kernel says.
"""
