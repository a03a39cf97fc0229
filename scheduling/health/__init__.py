"""Health of instances: which may have calls, judged by what calls and looks at them found. Pure.

cause       whose fault a failure is, and so whether it says anything of the engine
breaker     many failures: no calls for a while, then one on trial

The instances hold a breaker each (scheduling/endpoint.py), the scheduler reports how legs
ended, the prober how engines look (gateway/probe.py).
"""
