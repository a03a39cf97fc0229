"""Realtime sessions: `/v1/realtime`, a WebSocket between a client and one plain engine.

door      a session from its request to its end: key, limits, engine, and what is counted of it
offer     what a client says in its handshake: model, key, subprotocols, origin
relay     frames between the two sides
endings   what ends a session, and what goes to either side
summary   what the record of a session says of it
naming    models that a session may name, and other names of them
sessions  all that are open: their limits of time, the drain, metrics
"""
