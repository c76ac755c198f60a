{{/* The name of everything of the Deployment that holds users' tunnel. With an identity of its own that is the role's. */}}
{{- define "agent.name" -}}
{{- if .Values.identity.clusterId }}clusterconnect-agent
{{- else if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{/* Not empty when there is a second Deployment, the controller-manager. */}}
{{- define "agent.managed" -}}
{{- $enabled := .Values.controllerManager.enabled | toString }}
{{- if or (eq $enabled "true") (and (eq $enabled "auto") .Values.identity.clusterId) }}yes{{ end }}
{{- end }}

{{/* Not empty when others in the cluster get tokens of its identity. */}}
{{- define "manager.tokens" -}}
{{- if and .Values.identity.clusterId .Values.identityTokens.enabled }}yes{{ end }}
{{- end }}

{{/* Not empty when extensions are installed in the cluster, by a third Deployment. */}}
{{- define "extensions.on" -}}
{{- if .Values.extensions.enabled }}yes{{ end }}
{{- end }}

{{/* Not empty when the apiserver asks the agents about tokens and rights, by a Deployment of its own. */}}
{{- define "guard.on" -}}
{{- if .Values.guard.enabled }}yes{{ end }}
{{- end }}

{{/* Not empty when the agents are upgraded by themselves, by a Deployment of its own. */}}
{{- define "upgrades.on" -}}
{{- if .Values.upgrades.enabled }}yes{{ end }}
{{- end }}

{{- define "agent.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "manager.selector" -}}
app.kubernetes.io/name: towline-controller-manager
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "extensions.selector" -}}
app.kubernetes.io/name: towline-extension-manager
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "guard.selector" -}}
app.kubernetes.io/name: towline-guard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "upgrader.selector" -}}
app.kubernetes.io/name: towline-upgrader
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* These pods are not of this release: they come with the extension microsoft.flux. */}}
{{- define "gitops.selector" -}}
app.kubernetes.io/name: towline-fluxconfig-agent
{{- end }}

{{- define "fluxLogs.selector" -}}
app.kubernetes.io/name: towline-flux-logs-agent
{{- end }}

{{- define "agent.labels" -}}
{{ include "agent.selector" . }}
app.kubernetes.io/component: clusterconnect-agent
{{ include "agent.commonLabels" . }}
{{- end }}

{{- define "manager.labels" -}}
{{ include "manager.selector" . }}
app.kubernetes.io/component: controller-manager
{{ include "agent.commonLabels" . }}
{{- end }}

{{- define "extensions.labels" -}}
{{ include "extensions.selector" . }}
app.kubernetes.io/component: extension-manager
{{ include "agent.commonLabels" . }}
{{- end }}

{{- define "guard.labels" -}}
{{ include "guard.selector" . }}
app.kubernetes.io/component: guard
{{ include "agent.commonLabels" . }}
{{- end }}

{{- define "upgrader.labels" -}}
{{ include "upgrader.selector" . }}
app.kubernetes.io/component: upgrader
{{ include "agent.commonLabels" . }}
{{- end }}

{{- define "gitops.labels" -}}
{{ include "gitops.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: fluxconfig-agent
{{ include "agent.commonLabels" . }}
{{- end }}

{{- define "fluxLogs.labels" -}}
{{ include "fluxLogs.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: flux-logs-agent
{{ include "agent.commonLabels" . }}
{{- end }}

{{- define "agent.commonLabels" -}}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "agent.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "agent.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "manager.serviceAccount" -}}
{{- with .Values.controllerManager.serviceAccount }}
{{- .name | default (ternary "controller-manager" "default" .create) }}
{{- end }}
{{- end }}

{{- define "extensions.serviceAccount" -}}
{{- .Values.extensions.serviceAccount.name | default "extension-manager" }}
{{- end }}

{{- define "guard.serviceAccount" -}}
{{- with .Values.guard.serviceAccount }}
{{- .name | default (ternary "guard" "default" .create) }}
{{- end }}
{{- end }}

{{- define "upgrader.serviceAccount" -}}
{{- .Values.upgrades.serviceAccount.name | default "upgrader" }}
{{- end }}

{{/* Where the certificate is: written by the controller-manager when the cluster has an identity, else given. */}}
{{- define "agent.identitySecret" -}}
{{- if .Values.identity.clusterId }}towline-identity-certificate
{{- else }}{{ .Values.identity.existingSecret | default (printf "%s-identity" (include "agent.name" .)) }}
{{- end }}
{{- end }}

{{- define "agent.onboardingSecret" -}}
{{- .Values.identity.existingOnboardingSecret | default "towline-onboarding" }}
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

{{- define "extensions.image" -}}
{{- with .Values.extensions.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* A digest of a map of texts, the same whoever writes it. */}}
{{- define "agent.digest" -}}
{{- $lines := list }}
{{- range $key := keys . | sortAlpha }}
{{- $lines = append $lines (printf "%s=%s" $key (get $ $key | sha256sum)) }}
{{- end }}
{{- join "\n" $lines | sha256sum }}
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
{{- $onboarding := or .onboardingKey .existingOnboardingSecret }}
{{- if and .onboardingKey .existingOnboardingSecret }}
{{- $faults = append $faults "identity: only one of onboardingKey and existingOnboardingSecret may be set" }}
{{- end }}
{{- if .clusterId }}
{{- if or .certificate .key .existingSecret }}
{{- $faults = append $faults "identity: only one of clusterId and a certificate may be set: with clusterId the agents get certificates themselves" }}
{{- end }}
{{- if not $onboarding }}
{{- $faults = append $faults "identity: with clusterId one of onboardingKey and existingOnboardingSecret (with key.pem) is required" }}
{{- end }}
{{- if eq ($.Values.controllerManager.enabled | toString) "false" }}
{{- $faults = append $faults "controllerManager.enabled: with identity.clusterId it cannot be false: nobody would get the certificate" }}
{{- end }}
{{- else if $onboarding }}
{{- $faults = append $faults "identity.clusterId: is required with an onboarding key" }}
{{- else if and .existingSecret (or .certificate .key) }}
{{- $faults = append $faults "identity: only one of existingSecret and certificate with key may be set" }}
{{- else if not (or .existingSecret $pair) }}
{{- $faults = append $faults "identity: is required: clusterId with an onboarding key, certificate and key, or existingSecret with tls.crt and tls.key" }}
{{- end }}
{{- end }}
{{- with .Values.proxy }}
{{- if and (not .url) (or .ca .username .password .existingSecret) }}{{ $faults = append $faults "proxy.url: is required when the rest of the proxy is set" }}{{ end }}
{{- if ne (empty .username) (empty .password) }}{{ $faults = append $faults "proxy: username and password go together" }}{{ end }}
{{- if and .username .existingSecret }}{{ $faults = append $faults "proxy: only one of existingSecret and username with password may be set" }}{{ end }}
{{- end }}
{{- if include "extensions.on" . }}
{{- if not (include "agent.managed" .) }}
{{- $faults = append $faults "extensions.enabled: needs controllerManager.enabled: true, with which pods of the release reach the gateway through clusterconnect-agent" }}
{{- end }}
{{- with .Values.extensions }}
{{- if not .catalogueKeys }}
{{- $faults = append $faults "extensions.catalogueKeys: is required with extensions.enabled: the public keys (PEM) that sign the catalogue of extensions" }}
{{- end }}
{{- if not (or .serviceAccount.create .serviceAccount.name) }}
{{- $faults = append $faults "extensions.serviceAccount.name: is required where the service account is not created: it becomes an administrator of the cluster" }}
{{- end }}
{{- end }}
{{- end }}
{{- if include "guard.on" . }}
{{- if not (include "agent.managed" .) }}
{{- $faults = append $faults "guard.enabled: needs controllerManager.enabled: true, with which pods of the release reach the gateway through clusterconnect-agent" }}
{{- end }}
{{- if not .Values.issuers }}
{{- $faults = append $faults "guard.enabled: needs issuers: it would know nobody" }}
{{- end }}
{{- $prefixes := dict }}
{{- range .Values.issuers }}
{{- $prefix := .usernamePrefix | default "" }}
{{- if hasKey $prefixes $prefix }}
{{- $faults = append $faults (printf "guard.enabled: issuers %q and %q have the same usernamePrefix %q, by which guard tells their users from each other" (get $prefixes $prefix) .name $prefix) }}
{{- end }}
{{- $_ := set $prefixes $prefix .name }}
{{- end }}
{{- end }}
{{- if include "upgrades.on" . }}
{{- if not (include "agent.managed" .) }}
{{- $faults = append $faults "upgrades.enabled: needs controllerManager.enabled: true, with which pods of the release reach the gateway through clusterconnect-agent" }}
{{- end }}
{{- if not .Values.upgrades.catalogueKeys }}
{{- $faults = append $faults "upgrades.catalogueKeys: is required with upgrades.enabled: the public keys (PEM) that sign the catalogue" }}
{{- end }}
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

{{/* The same for the extension-manager, at least a minute: helm may end what it has begun; 15 seconds before the
     end of the drain, or of 50 seconds, it is told to end (SIGTERM), and killed at that end. */}}
{{- define "extensions.graceSeconds" -}}
{{- max 60 (int (include "agent.graceSeconds" .)) }}
{{- end }}
