{{/* The name of everything. */}}
{{- define "gateway.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "gateway.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gateway.labels" -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/component: gateway
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "gateway.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "gateway.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "gateway.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* Not empty where several pods share the store. */}}
{{- define "gateway.shared" -}}
{{- if eq .Values.store.type "postgres" }}yes{{ end }}
{{- end }}

{{- define "gateway.replicas" -}}
{{- if .Values.autoscaling.enabled }}{{ int .Values.autoscaling.minReplicas }}{{ else }}{{ int .Values.replicas }}{{ end }}
{{- end }}

{{/* Seconds until a pod that was told to end is killed: those of the drain, and some for what is before and after it. */}}
{{- define "gateway.graceSeconds" -}}
{{- $text := .Values.drainGrace }}
{{- $number := int (regexFind "^[0-9]+" $text) }}
{{- $unit := regexFind "[a-z]*$" $text }}
{{- add 18 (get (dict "ms" (div $number 1000) "s" $number "m" (mul $number 60) "h" (mul $number 3600) "d" (mul $number 86400)) $unit | default 0) }}
{{- end }}

{{- define "gateway.claim" -}}
{{- .Values.store.sqlite.existingClaim | default (include "gateway.name" .) }}
{{- end }}

{{/* Faults that a schema cannot see, all at once. */}}
{{- define "gateway.faults" -}}
{{- $faults := list }}
{{- range $name, $what := dict "url" "https://<host>[:<port>]" "tenant" "the GUID that towline-gateway init made" }}
{{- if not (get $.Values $name) }}{{ $faults = append $faults (printf "%s: is required: %s" $name $what) }}{{ end }}
{{- end }}
{{- if not .Values.subscriptions }}{{ $faults = append $faults "subscriptions: is required: one entry at least, with an id" }}{{ end }}
{{- range $name, $holds := dict "tls" "tls.crt and tls.key" "authority" "ca.crt and ca.key" "storeKey" "store.key" }}
{{- if not (get $.Values $name).existingSecret }}
{{- $faults = append $faults (printf "%s.existingSecret: is required: the name of a Secret with %s" $name $holds) }}
{{- end }}
{{- end }}
{{- if include "gateway.shared" . }}
{{- if not .Values.store.postgres.existingSecret }}
{{- $faults = append $faults "store.postgres.existingSecret: is required: the name of a Secret with url; or set store.type to sqlite, for one replica" }}
{{- end }}
{{- else }}
{{- if or (gt (int .Values.replicas) 1) .Values.autoscaling.enabled }}
{{- $faults = append $faults "replicas: several need store.type postgres; with sqlite set replicas to 1, and autoscaling.enabled to false" }}
{{- end }}
{{- end }}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
{{- $faults = append $faults "autoscaling.minReplicas: is more than maxReplicas" }}
{{- end }}
{{- if and .Values.issuer.existingSecret (not (and .Values.issuer.enabled (include "gateway.shared" .))) }}
{{- $faults = append $faults "issuer.existingSecret: needs issuer.enabled and store.type postgres, which takes its files over; with sqlite they are in the volume" }}
{{- end }}
{{- $own := include "config.own" . | fromYaml }}
{{- range $section, $settings := .Values.config }}
{{- if kindIs "map" $settings }}
{{- range $key := keys $settings | sortAlpha }}
{{- if hasKey (get $own $section | default dict) $key }}
{{- $faults = append $faults (printf "config.%s.%s: is set by this chart; see the other values" $section $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range .Values.files }}
{{- if eq (empty .secret) (empty .configMap) }}
{{- $faults = append $faults (printf "files: %s needs one of secret and configMap" .name) }}
{{- end }}
{{- end }}
{{- if $faults }}{{ fail (printf "\n%s" (join "\n" $faults)) }}{{ end }}
{{- end }}
