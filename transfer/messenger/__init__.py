"""Hands KV pages from the engine that computed them (P) to the one that goes on (D).

    pull      D asks under a key: P marks the pages as being read, D reads them, D lets go
    push      D says where its pages are and counts what lands in them; P writes each
              layer's pages as soon as they are computed

                        D                               P
    talk                peer.py                         service.py        messages.py
    decide (pure)       receiving.py                    sending.py, tiles.py
    what goes where     shards.py, over transfer/plan   the same, sharded.py
    act, on threads     loads.py, pull.py, push_in.py   offers.py, pushes.py
    write                                               mover.py, mover_process.py

What holds whatever goes wrong:

- Pages are used again only when no byte can land in them, or be read from them, any more:
  the other side said so, or every process of its that could write is gone.
- Whatever D waits for has a deadline, and ends with an error that has a name (errors.py).
- A key is served once; who comes second is refused.
"""
