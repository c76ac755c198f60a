{{/* The name of everything in the release. */}}
{{- define "agent.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "agent.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "agent.labels" -}}
{{ include "agent.selector" . }}
app.kubernetes.io/component: clusterconnect-agent
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "agent.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "agent.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "agent.identitySecret" -}}
{{- .Values.identity.existingSecret | default (printf "%s-identity" (include "agent.name" .)) }}
{{- end }}

{{/* Empty when the proxy wants no credentials. */}}
{{- define "agent.proxySecret" -}}
{{- with .Values.proxy }}
{{- if .existingSecret }}{{ .existingSecret }}{{ else if .username }}{{ include "agent.name" $ }}-proxy{{ end }}
{{- end }}
{{- end }}

{{- define "agent.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* Faults that a schema cannot see, all at once. */}}
{{- define "agent.faults" -}}
{{- $faults := list }}
{{- with .Values.gateway }}
{{- if not (or .url .urls) }}{{ $faults = append $faults "gateway.url: is required: https://host[:port]" }}{{ end }}
{{- if and .url .urls }}{{ $faults = append $faults "gateway.urls: only one of url and urls may be set" }}{{ end }}
{{- end }}
{{- with .Values.identity }}
{{- $pair := and .certificate .key }}
{{- if and .existingSecret (or .certificate .key) }}
{{- $faults = append $faults "identity: only one of existingSecret and certificate with key may be set" }}
{{- else if not (or .existingSecret $pair) }}
{{- $faults = append $faults "identity: is required: certificate and key, or existingSecret with tls.crt and tls.key" }}
{{- end }}
{{- end }}
{{- with .Values.proxy }}
{{- if and (not .url) (or .ca .username .password .existingSecret) }}{{ $faults = append $faults "proxy.url: is required when the rest of the proxy is set" }}{{ end }}
{{- if ne (empty .username) (empty .password) }}{{ $faults = append $faults "proxy: username and password go together" }}{{ end }}
{{- if and .username .existingSecret }}{{ $faults = append $faults "proxy: only one of existingSecret and username with password may be set" }}{{ end }}
{{- end }}
{{- if $faults }}{{ fail (printf "\n%s" (join "\n" $faults)) }}{{ end }}
{{- end }}

{{/* The drain and a little more, in seconds: drainGrace is 0 or a number with one of the units ms, s, m, h, d. */}}
{{- define "agent.graceSeconds" -}}
{{- $text := .Values.limits.drainGrace }}
{{- $number := int (regexFind "^[0-9]+" $text) }}
{{- $unit := regexFind "[a-z]*$" $text }}
{{- add 10 (get (dict "ms" (div $number 1000) "s" $number "m" (mul $number 60) "h" (mul $number 3600) "d" (mul $number 86400)) $unit | default 0) }}
{{- end }}
