"""`pdgate doctor`: looks at every engine of a fleet, and names what is wrong and its cure.

checks      the table of all that can be wrong: why it hurts, what cures it
seen        what engines say, as plain data
collect     asks them: health, models, version, metrics (never changes anything); and a running
            gateway for the fleet as it knows it
parsing     reads their answers
probing     calls of one token, and connections to where KV is fetched
hashes      what they call a block that all of them hold
rules/      pure: what was seen -> findings
examining   all of this in order, and engine ids of the last run, to notice those that survive a restart
report      findings as a table, or JSON
cli         the command
"""
