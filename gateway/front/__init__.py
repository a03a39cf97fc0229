"""The client's side: two front ends over one service, and what both write.

hot_protocol   uvicorn's own protocol class takes the hot POSTs
hot_cycle      one of them, from its head to the end of its answer
bounded_http   what a connection may send, on either front end
asgi           the plain way, for everything else and for other servers
answer_head    which headers a client gets; head_lines writes them
light          what uvicorn keeps for each connection, made when it is needed
pings          comments into streams that have nothing to say
"""
