"""Answers that must have a shape: what may come next decides which tokens may be sampled.

schema.py      a JSON schema    -> an expression over bytes
automaton.py   an expression    -> states, and which bytes lead from one to the next
vocabulary.py  a tokenizer      -> the bytes of each token
grammar.py     states and bytes -> a mask over the logits, followed token by token
"""
