{{/* The agents' configuration files. JSON texts and lists of texts are TOML too. Paths are relative to the file. */}}

{{/* The gateway, but for how a pod gets there. */}}
{{- define "config.gateway" -}}
[gateway]
{{- with .Values.gateway }}
urls = {{ .urls | default (list .url) | toJson }}
{{- if .ca }}
ca_file = "gateway-ca.crt"
{{- end }}
{{- with .serverName }}
server_name = {{ toJson . }}
{{- end }}
{{- end }}
{{- if .Values.extraCa }}
extra_ca_file = "extra-ca.crt"
{{- end }}
{{- if not .Values.identity.clusterId }}
certificate_file = "/etc/towline-identity/tls.crt"
key_file = "/etc/towline-identity/tls.key"
{{- end }}
{{- end }}

{{/* The certificate that the controller-manager gets and the others read. */}}
{{- define "config.identity" -}}
[identity]
cluster_id = {{ toJson .Values.identity.clusterId }}
secret = {{ include "agent.identitySecret" . | toJson }}
{{- end }}

{{- define "config.log" -}}
[log]
level = {{ toJson .Values.log.level }}
format = {{ toJson .Values.log.format }}

[admin]
listen = {{ printf "%s:%d" .Values.admin.address (int .Values.admin.port) | toJson }}
{{- end }}

{{/* Who users are and what they may: the same for all that judge them. And the proxy on the way to their issuers. */}}
{{- define "config.users" -}}
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
{{- range $key := keys (omit $issuer "ca" "keys" "pinnedKeys" "extra" "requiredClaims") | sortAlpha }}
{{ snakecase $key }} = {{ toJson (get $issuer $key) }}
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
{{- if .Values.azureRbac.enabled }}

[azure_rbac]
issuer = {{ toJson .Values.azureRbac.issuer }}
{{- end }}
{{- end }}

{{- define "agent.config" -}}
{{- if include "agent.managed" . }}roles = "clusterconnect-agent"

{{ end }}
{{- include "config.gateway" . }}
{{- with .Values.gateway }}
carrier = {{ .carrier | toJson }}
udp_segmentation_offload = {{ .udpSegmentationOffload }}
replicas = {{ int .replicas }}
{{- with .addresses }}
addresses = {{ toJson . }}
{{- end }}
{{- end }}
{{- if .Values.identity.clusterId }}

{{ include "config.identity" . }}
{{- end }}
{{- if include "agent.managed" . }}

[forward]
listen = {{ printf "%s:%d" .Values.admin.address (int .Values.controllerManager.port) | toJson }}
{{- end }}
{{- include "config.users" . }}

[sessions]
outlive_token = {{ toJson .Values.sessions.outliveToken }}

[limits]
streams = {{ int .Values.limits.streams }}
drain_grace = {{ toJson .Values.limits.drainGrace }}

{{ include "config.log" . }}
{{- end }}

{{- define "manager.config" -}}
roles = "controller-manager"

{{ include "config.gateway" . }}
carrier = "h2"
via = {{ printf "clusterconnect-agent.%s.svc:%d" .Release.Namespace (int .Values.controllerManager.port) | toJson }}
{{- if .Values.identity.clusterId }}

{{ include "config.identity" . }}
onboarding_key_file = "/etc/towline-onboarding/key.pem"
{{- end }}
{{- if include "manager.tokens" . }}

[identity_tokens]
listen = {{ printf "%s:%d" .Values.admin.address (int .Values.identityTokens.port) | toJson }}
server_names = {{ list (printf "cluster-identity.%s.svc" .Release.Namespace) (printf "cluster-identity.%s.svc.cluster.local" .Release.Namespace) | toJson }}
{{- end }}
{{- with .Values.metadata }}
{{- if or .distribution .infrastructure }}

[metadata]
{{- with .distribution }}
distribution = {{ toJson . }}
{{- end }}
{{- with .infrastructure }}
infrastructure = {{ toJson . }}
{{- end }}
{{- end }}
{{- end }}

[limits]
drain_grace = {{ toJson .Values.limits.drainGrace }}

{{ include "config.log" . }}
{{- end }}

{{- define "extensions.config" -}}
roles = "extension-manager"

{{ include "config.gateway" . }}
carrier = "h2"
via = {{ printf "clusterconnect-agent.%s.svc:%d" .Release.Namespace (int .Values.controllerManager.port) | toJson }}
{{- if .Values.identity.clusterId }}

{{ include "config.identity" . }}
{{- end }}

[extensions]
{{- with .Values.extensions }}
catalogue_keys = {{ toJson .catalogueKeys }}
timeout = {{ toJson .timeout }}
catalogue_interval = {{ toJson .catalogueInterval }}
{{- with .catalogueId }}
catalogue_id = {{ toJson . }}
{{- end }}
{{- with .allowedTypes }}
allowed_types = {{ toJson . }}
{{- end }}
{{- with .lockedSettings }}
locked_settings = {{ toJson . }}
{{- end }}
{{- with .chartRegistry }}
chart_registry = {{ toJson . }}
{{- end }}
{{- with .registrySecret }}
registry_secret = {{ toJson . }}
{{- end }}
{{- with .localRegistry }}
local_registry = {{ toJson . }}
{{- end }}
{{- end }}

[limits]
drain_grace = {{ toJson .Values.limits.drainGrace }}

{{ include "config.log" . }}
{{- end }}

{{- define "gitops.config" -}}
roles = "fluxconfig-agent"

{{ include "config.gateway" . }}
carrier = "h2"
via = {{ printf "clusterconnect-agent.%s.svc:%d" .Release.Namespace (int .Values.controllerManager.port) | toJson }}
{{- if .Values.identity.clusterId }}

{{ include "config.identity" . }}
{{- end }}

[gitops]
{{- with .Values.gitops }}
resync_interval = {{ toJson .resyncInterval }}
{{- with .allowedRepositories }}
allowed_repositories = {{ toJson . }}
{{- end }}
{{- with .allowedScopes }}
allowed_scopes = {{ toJson . }}
{{- end }}
{{- with .allowedNamespaces }}
allowed_namespaces = {{ toJson . }}
{{- end }}
{{- end }}

[limits]
drain_grace = {{ toJson .Values.limits.drainGrace }}

{{ include "config.log" . }}
{{- end }}

{{- define "guard.config" -}}
roles = "guard"

{{ include "config.gateway" . }}
carrier = "h2"
via = {{ printf "clusterconnect-agent.%s.svc:%d" .Release.Namespace (int .Values.controllerManager.port) | toJson }}
{{- if .Values.identity.clusterId }}

{{ include "config.identity" . }}
{{- end }}
{{- include "config.users" . }}

[guard]
listen = {{ printf "%s:%d" .Values.admin.address (int .Values.guard.port) | toJson }}
server_names = {{ list (printf "guard.%s.svc" .Release.Namespace) (printf "guard.%s.svc.cluster.local" .Release.Namespace) | toJson }}
{{- with .Values.guard.server }}
server = {{ toJson . }}
{{- end }}
{{- with .Values.guard.skipUsers }}
skip_users = {{ toJson . }}
{{- end }}
{{- /* An agent of 0.1 knows no such keys, and does not start with them. */}}
{{- if ne (int .Values.guard.cacheEntries) 65536 }}
cache_entries = {{ int .Values.guard.cacheEntries }}
{{- end }}
{{- if ne .Values.guard.cacheAllowedFor "3m" }}
cache_allowed_for = {{ toJson .Values.guard.cacheAllowedFor }}
{{- end }}
{{- if ne .Values.guard.cacheDeniedFor "3m" }}
cache_denied_for = {{ toJson .Values.guard.cacheDeniedFor }}
{{- end }}

[limits]
drain_grace = {{ toJson .Values.limits.drainGrace }}

{{ include "config.log" . }}
{{- end }}

{{- define "upgrader.config" -}}
roles = "upgrader"

{{ include "config.gateway" . }}
carrier = "h2"
via = {{ printf "clusterconnect-agent.%s.svc:%d" .Release.Namespace (int .Values.controllerManager.port) | toJson }}
{{- if .Values.identity.clusterId }}

{{ include "config.identity" . }}
{{- end }}

[upgrades]
{{- with .Values.upgrades }}
catalogue_keys = {{ toJson .catalogueKeys }}
interval = {{ toJson .interval }}
window = {{ toJson .window }}
timeout = {{ toJson .timeout }}
{{- with .catalogueId }}
catalogue_id = {{ toJson . }}
{{- end }}
{{- end }}

[limits]
drain_grace = {{ toJson .Values.limits.drainGrace }}

{{ include "config.log" . }}
{{- end }}

{{/* The agent that sends what Flux's controllers log: it comes with the same extension. */}}
{{- define "fluxLogs.config" -}}
roles = "flux-logs-agent"

{{ include "config.gateway" . }}
carrier = "h2"
via = {{ printf "clusterconnect-agent.%s.svc:%d" .Release.Namespace (int .Values.controllerManager.port) | toJson }}
{{- if .Values.identity.clusterId }}

{{ include "config.identity" . }}
{{- end }}

[limits]
drain_grace = {{ toJson .Values.limits.drainGrace }}

{{ include "config.log" . }}
{{- end }}

{{/* Everything of the ConfigMaps, as YAML. */}}
{{- define "config.gatewayFiles" -}}
{{- with .Values.gateway.ca }}
gateway-ca.crt: {{ toJson . }}
{{- end }}
{{- with .Values.extraCa }}
extra-ca.crt: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "config.userFiles" -}}
{{- with .Values.proxy.ca }}
proxy-ca.crt: {{ toJson . }}
{{- end }}
{{- range $index, $issuer := .Values.issuers }}
{{- with $issuer.ca }}
issuer-{{ $index }}-ca.crt: {{ toJson . }}
{{- end }}
{{- with $issuer.keys }}
issuer-{{ $index }}-keys.json: {{ toJson . }}
{{- end }}
{{- with $issuer.pinnedKeys }}
issuer-{{ $index }}-pinned.json: {{ toJson . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "agent.files" -}}
agent.toml: {{ include "agent.config" . | toJson }}
{{- include "config.gatewayFiles" . }}
{{- include "config.userFiles" . }}
{{- end }}

{{- define "manager.files" -}}
agent.toml: {{ include "manager.config" . | toJson }}
{{- include "config.gatewayFiles" . }}
{{- end }}

{{- define "extensions.files" -}}
agent.toml: {{ include "extensions.config" . | toJson }}
{{- include "config.gatewayFiles" . }}
{{- end }}

{{- define "gitops.files" -}}
agent.toml: {{ include "gitops.config" . | toJson }}
{{- include "config.gatewayFiles" . }}
{{- end }}

{{- define "fluxLogs.files" -}}
agent.toml: {{ include "fluxLogs.config" . | toJson }}
{{- include "config.gatewayFiles" . }}
{{- end }}

{{- define "upgrader.files" -}}
agent.toml: {{ include "upgrader.config" . | toJson }}
{{- include "config.gatewayFiles" . }}
{{- end }}

{{- define "guard.files" -}}
agent.toml: {{ include "guard.config" . | toJson }}
{{- include "config.gatewayFiles" . }}
{{- include "config.userFiles" . }}
{{- end }}

{{/* Everything of the Secrets of the release that a Deployment's pods use, as YAML. A private key among them keeps a digest of
them from telling a short password. */}}
{{- define "agent.secretFiles" -}}
{{- with .Values.identity }}
onboarding: {{ toJson (.onboardingKey | default "") }}
certificate: {{ toJson (.certificate | default "") }}
key: {{ toJson (.key | default "") }}
{{- end }}
{{- with .Values.proxy }}
username: {{ toJson (.username | default "") }}
password: {{ toJson (.password | default "") }}
{{- end }}
{{- end }}

{{- define "manager.secretFiles" -}}
{{- with .Values.identity }}
onboarding: {{ toJson (.onboardingKey | default "") }}
certificate: {{ toJson (.certificate | default "") }}
key: {{ toJson (.key | default "") }}
{{- end }}
{{- end }}

{{- define "extensions.secretFiles" -}}
{{- with .Values.identity }}
certificate: {{ toJson (.certificate | default "") }}
key: {{ toJson (.key | default "") }}
{{- end }}
{{- end }}

{{- define "upgrader.secretFiles" -}}
{{ include "extensions.secretFiles" . }}
{{- end }}

{{- define "guard.secretFiles" -}}
{{- with .Values.identity }}
certificate: {{ toJson (.certificate | default "") }}
key: {{ toJson (.key | default "") }}
{{- end }}
{{- with .Values.proxy }}
username: {{ toJson (.username | default "") }}
password: {{ toJson (.password | default "") }}
{{- end }}
{{- end }}
