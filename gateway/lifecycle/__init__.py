"""How a gateway that runs is changed as a whole, and how it ends.

drain       no new calls, and the end when those that run are over
reload      another configuration, all of it or nothing
live        what can be changed while it runs, and how
source      where the configuration came from
signals     SIGTERM, SIGINT and SIGHUP, in each process
unhurried   a server that sleeps while nobody calls
workers     several processes that are one gateway
"""
