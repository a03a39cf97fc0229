"""How long an engine will take, learnt from how long it took.

predicts   what is asked: one for each instance, on its Candidate
speed      seconds for so many tokens: reading prompts, taking KV over
pace       seconds for a step of decode
"""
