{{- define "chatd.name" -}}
{{- if contains "chatd" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-chatd{{ end -}}
{{- end -}}

{{- define "chatd.selector" -}}
app.kubernetes.io/name: chatd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "chatd.labels" -}}
{{ include "chatd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "chatd.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "chatd.secret" -}}
{{ .Values.existingSecret | default (printf "%s-keys" (include "chatd.name" .)) }}
{{- end -}}

{{/* A container that runs as account 10001, gains nothing and writes to its volumes only. */}}
{{- define "chatd.restricted" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end -}}

{{- define "chatd.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: { type: RuntimeDefault }
{{- end -}}
