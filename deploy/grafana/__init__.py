"""The dashboards: what they show is said here, and `python -m deploy.grafana.build` writes the rest.

panels      what a dashboard is made of, as plain data
overview, balance, hand_over, instances     the four dashboards
as_json     plain data -> Grafana's JSON
build       writes the JSON files, and the list of all panels in docs/operations/dashboards.md
"""
