{{/* The agent's configuration file. JSON texts and lists of texts are TOML too. Paths are relative to the file. */}}
{{- define "agent.config" -}}
[gateway]
{{- with .Values.gateway }}
urls = {{ .urls | default (list .url) | toJson }}
carrier = {{ .carrier | toJson }}
udp_segmentation_offload = {{ .udpSegmentationOffload }}
{{- if .ca }}
ca_file = "gateway-ca.crt"
{{- end }}
{{- with .serverName }}
server_name = {{ toJson . }}
{{- end }}
{{- with .addresses }}
addresses = {{ toJson . }}
{{- end }}
{{- end }}
{{- if .Values.extraCa }}
extra_ca_file = "extra-ca.crt"
{{- end }}
certificate_file = "/etc/towline-identity/tls.crt"
key_file = "/etc/towline-identity/tls.key"
{{- with .Values.proxy }}
{{- if .url }}

[proxy]
url = {{ toJson .url }}
{{- if .ca }}
ca_file = "proxy-ca.crt"
{{- end }}
{{- if include "agent.proxySecret" $ }}
username_file = "/etc/towline-proxy/username"
password_file = "/etc/towline-proxy/password"
{{- end }}
no_proxy = {{ toJson .noProxy }}
{{- end }}
{{- end }}
{{- range $index, $issuer := .Values.issuers }}

[[issuers]]
{{- range $key, $value := omit $issuer "ca" "keys" "pinnedKeys" "extra" "requiredClaims" }}
{{ snakecase $key }} = {{ toJson $value }}
{{- end }}
{{- range $key := list "extra" "requiredClaims" }}
{{- with get $issuer $key }}
{{ snakecase $key }} = { {{ range $index, $claim := keys . | sortAlpha }}{{ if $index }}, {{ end }}{{ toJson $claim }} = {{ get (get $issuer $key) $claim | toJson }}{{ end }} }
{{- end }}
{{- end }}
{{- if $issuer.ca }}
ca_file = "issuer-{{ $index }}-ca.crt"
{{- end }}
{{- if $issuer.keys }}
keys_file = "issuer-{{ $index }}-keys.json"
{{- end }}
{{- if $issuer.pinnedKeys }}
pinned_keys_file = "issuer-{{ $index }}-pinned.json"
{{- end }}
{{- end }}

[impersonation]
extras = {{ toJson .Values.impersonation.extras }}
allow_reserved = {{ toJson .Values.impersonation.allowReserved }}

[sessions]
outlive_token = {{ toJson .Values.sessions.outliveToken }}

[limits]
streams = {{ int .Values.limits.streams }}
drain_grace = {{ toJson .Values.limits.drainGrace }}

[log]
level = {{ toJson .Values.log.level }}
format = {{ toJson .Values.log.format }}

[admin]
listen = {{ printf "%s:%d" .Values.admin.address (int .Values.admin.port) | toJson }}
{{- end }}
