"""A directory on etcd, over its HTTP gateway.

directory   the contract, over the rest
announce    keeps one engine's entry: a lease, and what to do when it is lost
follow      tells what changes: a watch, and what to do when it is lost
wire        the JSON of the gateway, as pure functions
http        requests to etcd, one member after the other
login       what it may want to know before
access      where it is, who we are to it, and whom we trust to be it
"""
