"""Call stats in plain numbers, and the declared metrics; samples are made when asked for.

families         every metric: name, help, labels, zero values, merging over workers
family           what a declaration is
zero_values      label values that are there with 0 from the start
call_stats       calls, their stages and their ends, and how often things happened
aggregates       what is counted of calls that are alike
call_samples     call stats as samples of the families

Those of several workers are one page by gateway/sync/workers/metrics.py.
"""
