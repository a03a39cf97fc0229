"""What is counted, in plain numbers; Prometheus text is made when asked for.

books     calls, their stages and their ends
health    engines' states, drains, reloads
known     label values that are there with 0 from the start
kv        who holds KV, and what is stranded
workers   what several processes have counted, added up
"""
