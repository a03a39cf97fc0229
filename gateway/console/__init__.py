"""The console: the page /console, and the numbers under it.

page        the static files, and what a browser may do with them
snapshots   one picture of the gateway a second, for all who watch
part        what one process adds to it; siblings asks the other workers for theirs
calls       a call in a row of a table: where it is, or how it ended
pulse       TTFT, ITL and calls of the last minutes, slot by slot
cards       an engine in a few numbers
attention   whether this process is watched, so that choices of engines are explained

Unwatched, it costs a look at the histograms every `pulse.SLOT_SECONDS`, and the last
records (gateway/debug.py).
"""
