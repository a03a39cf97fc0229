"""AWS Neuron's disaggregated inference (ZMQ generation), both ends of it.

    signal plane                              data plane
    messages.py     what is said, as JSON     kv_map.py        who holds which heads
    send_buffer.py  P: answers lookups        communicator.py  two-sided transfers, in order
    recv_buffer.py  D: looks up, receives     transfer_engine.py  all communicators of a pair
    turns.py        P: who is served next     transpose.py     heads between rank layouts
    lookups.py      D: who is asked for next
    rules.py        which requests may start, as the documentation has it

    D  -- handshake, kv_map_init ------------->  P     once, when the two first meet
    D  -- lookup_all {uid, D's blocks} ------->  P     until P has the request
    D  <- success, first token, P's blocks ----  P     and both post their half of the transfer

Decisions (turns, lookups, rules, kv_map, messages) are pure; the buffers have a thread each.

Source: AWS Neuron documentation, "Disaggregated Inference"; its vLLM V0 fork,
vllm/distributed/kv_transfer/neuron/ (neuron_buffer.py, neuron_transfer_engine.py,
nxdi_kv_map_utils.py, zmq_util.py).
"""
