"""Latency model of an engine: how long it will take, learnt from how long it took.

model           what is asked: one for each instance, on its Endpoint; of those that are alike; and rates, as seconds
                for so many tokens: reading prompts, taking KV over
accuracy        how far off what was expected is
quadratic       what attention adds for long prompts
step_time       seconds for a step of decode
least_squares   the fit beneath the last two
"""
