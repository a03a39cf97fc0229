"""`pdgate replay`: the calls of a trace, sent to a real gateway, at their own times.

    asked.py        what the flags mean
    prompts.py      prompts that begin alike where the trace's do
    connection.py   an HTTP/1.1 connection that costs the driver next to nothing
    reading.py      a stream of an answer: when its tokens came, and whether it is whole
    driving.py      each call at its time, and how late the driver itself was
    outcome.py      what became of a call
    figures.py      what that is together
    report.py       as a table, as JSON, as a page
    cli.py          the command

The same trace, flags and seed send the same bytes.
"""
