"""Admin routes: what operators change while the gateway runs, in all of its processes.

routes          GET and PUT /admin/disaggregation, for who knows the token
instances       which engines get calls: GET, drain, undrain
process         POST /admin/drain and /admin/reload, GET /admin/jobs: this gateway's processes

What is put here is in force in all processes by gateway/sync/shared_setting.py.
"""
