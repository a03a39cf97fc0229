"""How a gateway that runs is changed as a whole, and how it ends.

drain       no new calls, and the end when those that run are over
signals     SIGTERM and SIGINT, in each process
"""
