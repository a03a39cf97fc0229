"""What backends are built of. Nothing here knows how bytes travel.

moving.py                  the base of all: arguments checked once, an order becomes a plan
jobs.py, threads.py        plans carried out, on threads that wait for work
running.py, deadlines.py   one transfer and its end; what ends it if nothing else does
arrivals.py                counted writes
regions.py, memfd.py       registered memory; memory that processes can share
ranges.py, op.py           lists of ranges, checked and merged
listener.py, links.py      a port whose connections have a thread each; connections kept
sockets.py                 whole messages, and pages without a copy
"""
