"""What operators change while the gateway runs, and how all its processes hear of it.

routes          GET and PUT /admin/disaggregation, for who knows the token
instances       which engines get calls: GET, drain, undrain
drain           POST /admin/drain, the end of this gateway
reload          POST /admin/reload, another configuration for it
dial            the thresholds in force: put by an operator, or followed from a board
board           where a value is pinned for other processes: here a file, for one machine
redis_board     the same in Redis, for all replicas
status          whether that Redis answers, on /ready and /metrics
"""
