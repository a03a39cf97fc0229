"""ZMTP, what ZeroMQ's sockets speak: within bounds, and without ZeroMQ.

    wire.py       one connection: its messages, each bounded in bytes, parts and seconds
    listener.py   PULL and ROUTER: who connects is heard, and may be answered
    dialled.py    SUB and DEALER: a connection to a publisher, or to who answers
    curve.py      the same, encrypted: the client's side of CURVE

ZeroMQ bounds a part of a message (ZMQ_MAXMSGSIZE) and the whole messages that wait (ZMQ_RCVHWM), but not the parts of a message that
never ends: one connection fills all memory, 200 MB a second. So whatever another host can send to is read here.

Source: RFC 23 (ZMTP 3.0; greeting, NULL mechanism, framing), RFC 37 (ZMTP 3.1; PING); libzmq 4.3.5, src/pipe.cpp (pipe_t::write,
check_hwm), where a part with more behind it counts for nothing.
"""
