"""Lifecycle: how a gateway that runs is changed as a whole, and how it ends.

drain       no new calls, and the end when those that run are over
reload      another configuration, all of it or nothing
source      where the configuration came from
signals     SIGTERM, SIGINT and SIGHUP, in each process
low_wakeup_server  a server that sleeps while no calls come
workers     several processes that are one gateway: the parent's side
worker      a worker's side
line        what the two say to each other
"""
