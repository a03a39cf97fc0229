"""Over sockets, between any two hosts: a thread for each connection."""
