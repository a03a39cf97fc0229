"""What the gateway costs, beside its peers: `make bench`.

    __main__.py    the command: installs, then measures where there is only loopback
    native/        mock engine and load generator, in C; programs.py compiles them
    targets/       one file for each gateway: how it is installed and started
    toy.py         the proxy that one would write first, as a yardstick
    scenarios.py   what is asked, and the figures that come of it
    fleet.py       engines and gateways that run
    priority.py    lets them run before all else, where the machine has other work
    trial.py       one target in one scenario, once; or what was wrong with it
    rounds.py      all of them in turn
    figures.py     medians and ratios
    report.py      table and JSON; chart.py: the picture

Every answer is checked. A target of whose answers one was wrong has no figure in that scenario.
"""
