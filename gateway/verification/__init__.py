"""Does the KV that prefill computed arrive? What was sent, against what the engines counted.

window.py     one engine over one stretch of time -> Verdict. Pure
causes.py     why an engine that recomputes does so, as far as its page shows it. Pure
verifier.py   a window per engine, opened and closed as pages come; complaints, once each
watch.py      all of that put together, as metrics, and on /admin/instances
"""
