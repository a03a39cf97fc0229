"""WebSocket connections of either side, once their handshake is asked for: frames in and out, bounded.

wire    a connection: wsproto reads and writes its frames, back-pressure both ways
dial    one that the gateway opens, to an engine
"""
