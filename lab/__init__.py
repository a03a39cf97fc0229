"""Lab: what rehearses and proves, from outside; nothing that serves imports it.

    simulator    calls of a trace through the real scheduler, against simulated engines
    replay       calls of a trace to a real gateway
    chaos        faults between a gateway and an engine
    conformance  whether a protocol does what every protocol must
    demo         engines, a gateway and one question on this machine
    processes    programs that surely end, for those that start some

Each folder is a command; only replay reads another's, the simulator's traces and charts.
"""
