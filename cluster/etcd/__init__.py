"""A directory on etcd, over its HTTP gateway.

directory   the contract, and one engine's entry: a lease, and what to do when it is lost
follow      what changes: a watch, and what to do when it is lost
wire        the JSON of the gateway, as pure functions
http        requests to etcd, one member after the other
login       what it may want to know before
access      its address, our name and password, and the certificates that it may show
"""
