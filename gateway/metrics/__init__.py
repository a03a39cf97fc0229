"""What is counted, in plain numbers; Prometheus text is made when asked for.

books     calls, their stages and their ends
ended     what is kept of a call until it is added up
grouped   tallies of several routes as one
health    engines' states, drains, reloads
known     label values that are there with 0 from the start
kv        who holds KV, and what is stranded
tally     what is counted of calls that are alike
telling   all of it as Prometheus' families
workers   what several processes have counted, added up
"""
