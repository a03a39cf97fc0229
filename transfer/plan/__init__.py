"""The plan of bytes that move from rank to rank: pure, and the same on both ends.

    layout.py    what an engine's KV looks like and how it is split over ranks
    memory.py    where the pages of one rank lie in its region
    agree.py     may these two engines exchange pages at all? else LayoutMismatch
    links.py     (source rank, destination rank, heads, layers) that meet in a transfer
    meeting.py   two engines: agreed and checked once, and every link between them
    pair.py      a link with everything precomputed: a call costs its block ids only
    segments.py  the answer: (source offset, destination offset, length), merged
    count.py     how many writes a destination rank waits for

    hand-shake    meeting = Meeting(source, destination)
    per call      for pair in meeting.to(rank, spread(call_id)):
                      pair.segments(source_blocks, destination_blocks, tokens, layers)
    by layer      chunk = pair.chunk(source_blocks, destination_blocks, tokens), once
                      chunk.of(layers), for each

One layout is one group of layers that look alike; a model with several kinds of cache
plans each kind on its own.
"""
