"""`pdgate chaos`: what goes wrong between a gateway and its engines, made to go wrong on purpose.

    gateway ---> FaultProxy ---> engine        one proxy in front of each engine to disturb

    fault      what can go wrong, as data: cut, stall, refuse, ...
    plan       which requests or connections meet which fault; pure, the same for the same seed
    passage    what a fault does to the bytes of one exchange
    link       two connections and the bytes between them
    proxy      listens, makes links, changes plans while it runs
    journal    what was injected, and waiting for it
    settings   a TOML file or flags -> a plan
    cli        the command

It imports nothing of pdgate but the lab's processes, so that it disturbs any gateway, and engines
of any make. Programs that can be killed and started again, and `until`, are of the same use.
"""

from pdgate.lab.chaos.fault import Corrupt, Cut, Delay, Fault, HalfOpen, Refuse, SlowReader, Stall
from pdgate.lab.chaos.plan import Plan, Rule
from pdgate.lab.chaos.proxy import FaultProxy
from pdgate.lab.processes import ProcessFailed, Program, running, until

__all__ = [
    "Corrupt",
    "Cut",
    "Delay",
    "Fault",
    "FaultProxy",
    "HalfOpen",
    "Plan",
    "ProcessFailed",
    "Program",
    "Refuse",
    "Rule",
    "SlowReader",
    "Stall",
    "running",
    "until",
]
