"""A directory that Kubernetes keeps: engines are the pods behind labelled Services.

directory   by its options
slices      what an EndpointSlice says of engines, as pure functions
fleet       what all of them say together, and which changes follow; pure
wire        the JSON of lists and watches, as pure functions
http        requests to the API server
follow      a watch, and what to do when it is lost
access      where the API is, who we are to it, and whom we trust to be it
"""
