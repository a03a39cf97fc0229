"""The prefill queue: prompts that any prefill engine may compute, each given to one at a time.

    contract.py        what a queue is: put, take, hold, free, done, depth
    settings.py        redis://host/0?capacity=256 -> QueueSettings
    opening.py         a queue by its URL
    memory.py          within one process
    redis_streams.py   Redis 7, a stream and a consumer group;  redis_scripts.py: its atomic steps

An item holds no prompt and no pages: its worker asks the decode engine whether it is
still wanted, and that one says the rest. So nothing on the queue can be out of date.
"""
