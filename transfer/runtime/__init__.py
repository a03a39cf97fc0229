"""Parts of backends. Nothing here knows how bytes travel.

moving.py                  the base of all: arguments checked once, an order becomes a plan
jobs.py                    plans carried out, on threads that wait for work
running.py                 one transfer and its end; the deadline that ends it if nothing else does
arrivals.py                counted writes
regions.py, memfd.py       registered memory; memory that processes can share
ranges.py                  lists of ranges, checked and merged, and split for several connections
listener.py, links.py      a port whose connections have a thread each; connections kept
fleet.py, handshake.py     who we are among the fleet; how both ends of a connection prove it (pure)
channel.py, strangers.py   connections that are proven; those that are not yet
tls.py                     encryption around them, where there are certificates
sockets.py                 whole messages, and pages without a copy
"""
