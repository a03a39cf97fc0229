"""Endpoint picker: says to a gateway made of Envoy which engines a request is for, and sends nothing itself.

    Envoy --ext_proc: head, body--> wire.py, conversation.py --> picking.py: intake, keys, admission, the scheduler
          <--the engine's address, prefill's--                       its reservations end with the response
          --the response's head, end--> outcome.py                   what the scheduler learns of it

The protocol is that of the Gateway API inference extension, version 1.0
(kubernetes-sigs/gateway-api-inference-extension 84436a9, docs/proposals/004-endpoint-picker-protocol).
Sidecars beside decode engines read the names of other engines from headers of llm-d's
(llm-d/llm-d-inference-scheduler 520af47, pkg/common/routing/common.go).
"""
