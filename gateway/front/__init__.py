"""Client side: connections of our own, the two ways on from them, and what both write.

hot_protocol  one client connection: requests out of bytes, one after another
limits           what a connection may send, and how long that may take
crowd            all connections of the process: their clocks, and the memory that they hold
hot_cycle        a hot POST, from its head to the end of its answer
asgi_cycle       any other request, as an ASGI application sees it
asgi             that application: calls, before FastAPI, and for FastAPI's own routes
incoming         a body over another server's connection: its memory and its time
response_head    which headers a client gets, and how they are written
addresses        the two ends of a connection
pings            comments into streams that have nothing to say
"""
