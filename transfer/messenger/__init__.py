"""Hand-over of KV pages from the engine that computed them (P) to the one that goes on (D).

    pull      D asks under a key: P marks the pages as being read, D reads them, D lets go
    push      D says where its pages are and counts what lands in them; P writes each
              layer's pages as soon as they are computed, or all of them at the end

                        D                               P
    talk                peer.py                         service.py, line.py     messages.py
    believe nothing     shape.py                        asked.py
    decide (pure)       receiving.py                    sending.py, tiles.py
    whom to ask         workers.py, each_worker.py      workers.py
    what goes where     shards.py, over transfer/plan   the same, sharded.py
    act, on threads     loads.py, pull.py,              offers.py, push_table.py,
                        receive_push.py, incoming.py,   push.py
                        push_waiter.py
    write                                               mover.py, process_mover.py
    beside the pages    slots.py            context.py  outbox.py
    count               counters.py                     the same

What holds whatever goes wrong:

- Pages are used again only when no byte can land in them, or be read from them, any more:
  the other side said so, or every process of its that could write is gone.
- Whatever D waits for has a deadline, and ends with an error that has a name (errors.py).
- A key is served once; who comes second is refused.

docs/wire/messenger.md has what is said, in which order, and what is counted.
"""
