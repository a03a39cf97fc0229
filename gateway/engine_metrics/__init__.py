"""Engines' own /metrics: what they counted, and how busy they are.

page.py        bytes of a page -> Page, reading only the families that are needed
families.py    which families those are, per engine
counters.py    what an engine has counted, and what is new between two pages
reader.py      asks every engine every few seconds; whether they reach the queue of decode-first
"""
