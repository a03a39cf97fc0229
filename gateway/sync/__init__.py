"""What processes of one gateway, and its replicas on other hosts, know of each other, and settings that they share.

workers/            the workers of one host: which of them live; load, prompts and lines by
                    shared memory, metrics by files
replicas/           load and prompts of replicas on other hosts, by Redis
shared_store.py     where a value is kept for other processes: a file for one host, or a Redis
shared_setting.py   a setting that an operator changes: put there by one process, followed by all;
                    whether the Redis answers is on /ready and /metrics
"""
