{{- define "pdgate.name" -}}
{{- if contains "pdgate" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-pdgate" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "pdgate.labels" -}}
app.kubernetes.io/name: pdgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pdgate.chart-labels" -}}
{{ include "pdgate.labels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "pdgate.redis-url" -}}
{{- if .Values.redis.url }}{{ .Values.redis.url }}{{ else if .Values.redis.enabled }}redis://{{ include "pdgate.name" . }}-redis:6379/0{{ end }}
{{- end }}
