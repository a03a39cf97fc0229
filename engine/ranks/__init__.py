"""Ranks of the reference engine in processes of their own, with a region, a mover and a KV port each.

    engine process                             rank processes
    HTTP, scheduler, projections, sampling     pages of some layers and heads, attention over them
    connector.py   hooks     --- orders -->    process.py   the protocol's own connector
    pages.py       K, V, q   --- orders -->                 KvMemory
    crew.py        loaded, released  <-- events ---

What needs no pages is computed once, by the engine's own process, so no sum is split over ranks and an answer is
the single engine's. Peers meet the ranks: nothing that is handed over passes through the engine's process.
"""
