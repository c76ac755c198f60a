{{/* The gateway's configuration file. Paths are relative to it. */}}

{{/* What the chart says itself, as YAML: sections with their settings. */}}
{{- define "config.own" -}}
listen:
  public: {{ printf "%s:%d" (include "config.any" .) (int .Values.ports.public) | quote }}
  admin: {{ printf "%s:%d" (include "config.any" .) (int .Values.ports.admin) | quote }}
tls:
  certificate_file: /etc/towline-tls/tls.crt
  key_file: /etc/towline-tls/tls.key
agents:
  ca_file: /etc/towline-authority/ca.crt
  authority_dir: /etc/towline-authority
limits:
  drain_grace: {{ .Values.drainGrace | quote }}
api:
  url: {{ .Values.url | trimSuffix "/" | quote }}
  tenant: {{ .Values.tenant | quote }}
  {{- if include "gateway.shared" . }}
  postgres_url_file: /etc/towline-database/url
  {{- else }}
  store_file: /var/lib/towline/towline.db
  {{- end }}
  store_key_file: /etc/towline-store-key/store.key
  owners: {{ toJson .Values.owners }}
  subscriptions: {{ toJson .Values.subscriptions }}
  {{- if .Values.ca }}
  ca_file: ca.crt
  {{- end }}
{{- if .Values.issuer.enabled }}
issuer:
  state_dir: {{ ternary "/etc/towline-issuer" "/var/lib/towline/issuer" (not (empty .Values.issuer.existingSecret)) }}
{{- end }}
{{- if include "gateway.shared" . }}
replicas:
  listen: {{ printf "%s:%d" (include "config.any" .) (int .Values.ports.peers) | quote }}
  stale_for: {{ .Values.staleFor | quote }}
{{- end }}
{{- end }}

{{- define "config.any" -}}
{{ ternary "[::]" "0.0.0.0" .Values.ipv6 }}
{{- end }}

{{- define "config.key" -}}
{{ if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}

{{/* A value as TOML. A text of JSON is one of TOML; a number of helm may be whole and have a point all the same. */}}
{{- define "config.value" -}}
{{- if kindIs "map" . -}}
{ {{- range $index, $key := keys . | sortAlpha }}{{ if $index }}, {{ end }}{{ include "config.key" $key }} = {{ include "config.value" (get $ $key) }}{{ end -}} }
{{- else if kindIs "slice" . -}}
[ {{- range $index, $value := . }}{{ if $index }}, {{ end }}{{ include "config.value" $value }}{{ end -}} ]
{{- else if kindIs "string" . -}}
{{ toJson . }}
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ int64 . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end }}

{{/* The issuers that are believed: the gateway's own, which it asks for its keys itself, and those of the values. */}}
{{- define "config.issuers" -}}
{{- $issuers := list }}
{{- if .Values.issuer.enabled }}
{{- $url := printf "%s/.towline/issuer" (.Values.url | trimSuffix "/") }}
{{- $own := dict "name" "towline" "url" $url "username_claim" "preferred_username" }}
{{- if .Values.ca }}
{{- $keys := printf "https://%s:%d/.towline/issuer/keys" (ternary "[::1]" "127.0.0.1" .Values.ipv6) (int .Values.ports.public) }}
{{- $_ := merge $own (dict "jwks_url" $keys "ca_file" "ca.crt") }}
{{- end }}
{{- $issuers = append $issuers $own }}
{{- end }}
{{- dict "issuers" (concat $issuers (get .Values.config "issuers" | default list)) | toJson }}
{{- end }}

{{- define "config.file" -}}
{{- $own := include "config.own" . | fromYaml }}
{{- $tables := merge (deepCopy (omit .Values.config "issuers")) $own (include "config.issuers" . | fromJson) }}
{{- range $name := keys $tables | sortAlpha }}
{{- if kindIs "slice" (get $tables $name) }}
{{ $name }} = {{ include "config.value" (get $tables $name) }}
{{- end }}
{{- end }}
{{- range $name := keys $tables | sortAlpha }}
{{- $table := get $tables $name }}
{{- if kindIs "map" $table }}

[{{ $name }}]
{{- range $key := keys $table | sortAlpha }}
{{ include "config.key" $key }} = {{ include "config.value" (get $table $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
