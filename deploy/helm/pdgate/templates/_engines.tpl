{{- /* What vLLM is told of how KV goes: (protocol, side). */ -}}
{{- define "pdgate.kv-config" -}}
{{- $roles := dict "prefill" "kv_producer" "decode" "kv_consumer" "both" "kv_both" }}
{{- $role := get $roles .side }}
{{- if eq .protocol "vllm-nixl" }}
{{- dict "kv_connector" "NixlConnector" "kv_role" $role | toJson }}
{{- else if eq .protocol "vllm-mooncake" }}
{{- dict "kv_connector" "MooncakeConnector" "kv_role" $role | toJson }}
{{- else }}
{{- $extra := dict "transfer" "tcp" "host" "0.0.0.0" "advertise" "$(POD_IP)" "api" "127.0.0.1:8000" "kv_secret_file" "/etc/pdgate-kv/secret" }}
{{- dict "kv_connector" "PdgateConnector" "kv_connector_module_path" "pdgate.engine.vllm.connector" "kv_role" $role "kv_port" 28000 "kv_load_failure_policy" "fail" "kv_connector_extra_config" $extra | toJson }}
{{- end }}
{{- end }}

{{- /* The Secret by which engines of our connector know each other. */ -}}
{{- define "pdgate.kv-secret" -}}
{{- .Values.engines.kvSecret | default (printf "%s-kv" (include "pdgate.name" .)) }}
{{- end }}

{{- define "pdgate.kv-port" -}}
{{- get (dict "vllm-nixl" "5600" "vllm-mooncake" "8998" "vllm-kvt" "28000") .protocol }}
{{- end }}
