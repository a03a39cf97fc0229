"""Batch API: files of calls, served at the lowest urgency, and files of their answers.

objects     files and batches, as clients read them
lines       one line: a call, or why it is none; its answer, or its error
state       what is kept of them: the contract
sqlite      the state in a file of SQLite
in_redis    the state in a Redis, which several hosts share; redis_scripts has its keys and steps
sharing     the state that settings ask for, and which process serves batches: a lock of the host's, or a lease (redis_lease)
blobs       contents of files, in a folder or at a storage
archive     those, for the event loop
upload      a form with a file, written as it comes
operations  what owners do with their files and batches
routes      /v1/files and /v1/batches
answering   one line through the service, until it has its answer
reading     lines of an input, as memory allows
serving     one batch, from its input to its files
runner      the one process that serves batches
"""
