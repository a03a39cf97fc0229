"""AWS Neuron's disaggregated inference (ZMQ generation), both ends of it.

    prefill                                 decode
    send_buffer.py  answers, and sends      peers.py        a pairing for each P, when first named
    kept.py         what may be looked up   recv_buffer.py  one of them: looks up, receives
    turns.py        which is served next     lookups.py      who is asked for next, and when
                                            dealer.py       a question, its answer, a lost peer
    both
    messages.py         what is said, as JSON
    kv_map.py           who holds which heads, and where
    transfer_engine.py  all communicators of a pairing, and what of a request goes over which
    communicator.py     two-sided transfers between two ranks, in order
    lists.py            which pieces go over which communicator, in one of two ways:
    slices.py           to where decode wants them, as the planner cuts them
    whole_pages.py      as prefill has them; transpose.py puts them in order on arrival

    D  -- handshake, kv_map_init ------------->  P     once, when the two first meet
    D  -- lookup_all {uid, D's blocks} ------->  P     until P has the request
    D  <- success, first token, P's blocks ----  P     and both post their half of the transfer

Decisions (kept, turns, lookups, kv_map, messages, transpose) do no I/O; a SendBuffer
has a thread, and so has each RecvBuffer.

Source: AWS Neuron documentation, "Disaggregated Inference"; its vLLM V0 fork,
vllm/distributed/kv_transfer/neuron/ (neuron_buffer.py, neuron_transfer_engine.py,
nxdi_kv_map_utils.py, zmq_util.py).
"""
