"""One OpenTelemetry trace for each call that is sampled. Nothing is done for the others.

context      traceparent: which engine is asked for more, and what engines get
sampling     which calls, and their Trace
spans        a call's record --> spans, when it is over. Pure
collector    what is configured about where they go
export       batches, off the event loop
genai        the GenAI histograms of OpenTelemetry, from call stats
"""
