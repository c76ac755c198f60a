{{/* What the extension-manager gave; without it there is no agent to work with. A configuration with the scope of a namespace
that has Flux's controllers would act as they do, so their namespace is one that the agent knows. */}}
{{- define "flux.towline" -}}
{{- $towline := (.Values.global).towline | default dict }}
{{- range $key := list "namespace" "agentImage" }}
{{- if not (get $towline $key) }}
{{- fail (printf "global.towline.%s: is required: this chart is installed as an extension, by the extension-manager of Towline" $key) }}
{{- end }}
{{- end }}
{{- if ne .Release.Namespace "flux-system" }}
{{- fail (printf "the release namespace is %s, and must be flux-system: the agents keep configurations away from Flux's controllers by that name" .Release.Namespace) }}
{{- end }}
{{- toYaml $towline }}
{{- end }}

{{/* A definition of Flux's that is in the cluster and that this chart did not make: somebody else's Flux. Its objects are
used, and nothing of it is changed. */}}
{{- define "flux.foreign" -}}
{{- range $name := list "gitrepositories.source.toolkit.fluxcd.io" "kustomizations.kustomize.toolkit.fluxcd.io" }}
{{- with lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name }}
{{- if ne (get (.metadata.labels | default dict) "towline.io/chart" | default "") $.Chart.Name }}{{ $name }} {{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Somebody else's Flux has to know the version of its API that the agent writes. */}}
{{- define "flux.check" -}}
{{- range $name := include "flux.foreign" . | trim | splitList " " | compact }}
{{- with lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name }}
{{- $versions := list }}
{{- range .spec.versions }}{{ if .served }}{{ $versions = append $versions .name }}{{ end }}{{ end }}
{{- if not (has "v1" $versions) }}
{{- fail (printf "the Flux in this cluster, which this chart did not install, is too old: %s serves %s, and v1 is needed; upgrade it, or remove it" $name (join ", " $versions)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Not empty when this controller is to be there. Takes a list of the root and the controller's name. */}}
{{- define "flux.runs" -}}
{{- $root := first . }}
{{- if and (index $root.Values (last .)).enabled (not (include "flux.foreign" $root)) }}yes{{ end }}
{{- end }}

{{- define "flux.selector" -}}
app.kubernetes.io/name: {{ last . }}
app.kubernetes.io/instance: {{ (first .).Release.Name | quote }}
{{- end }}

{{- define "flux.labels" -}}
{{ include "flux.selector" . }}
app.kubernetes.io/component: {{ last . }}
app.kubernetes.io/part-of: flux
{{- with first . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
{{- end }}

{{/* The whole name of a controller's image. Those that are ours are beside the agents'. */}}
{{- define "flux.image" -}}
{{- $root := first . }}
{{- $name := last . }}
{{- $image := (index $root.Values $name).image }}
{{- $repository := $image.repository }}
{{- if not $repository }}
{{- if not (has $name (list "source-controller" "kustomize-controller")) }}
{{- fail (printf "%s.image.repository: is required: its image does not come with this chart" $name) }}
{{- end }}
{{- $towline := include "flux.towline" $root | fromYaml }}
{{- $repository = printf "%s/towline-%s" ($towline.registry | default "towline.test") $name }}
{{- end }}
{{- if $image.digest }}{{ $repository }}@{{ $image.digest }}{{ else }}{{ $repository }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* How the others fetch from source-controller. The Service is made before the pods, so that they have its variables. */}}
{{- define "flux.storageAddress" -}}
{{- $how := (index .Values "source-controller").advertise }}
{{- if eq $how "auto" }}
{{- $how = ternary "service" "address" (not (empty (lookup "v1" "Service" "kube-system" "kube-dns"))) }}
{{- end }}
{{- if eq $how "service" }}source-controller.{{ .Release.Namespace }}.svc{{ else }}$(SOURCE_CONTROLLER_SERVICE_HOST){{ end }}
{{- end }}

{{/* A Deployment of a controller. Takes a dict: root, name, args, volumes (a list), mounts, env, ports, readiness, tmp, and
podLabels (YAML). */}}
{{- define "flux.deployment" -}}
{{- $root := .root }}
{{- $name := .name }}
{{- $of := list $root $name }}
{{- $values := index $root.Values $name }}
{{- $towline := include "flux.towline" $root | fromYaml }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "flux.labels" $of | nindent 4 }}
spec:
  replicas: 1
  revisionHistoryLimit: 3
  selector:
    matchLabels: {{- include "flux.selector" $of | nindent 6 }}
  # Two of them would have storage of their own each, and work on the same objects.
  strategy: {type: Recreate}
  template:
    metadata:
      labels:
        {{- include "flux.labels" $of | nindent 8 }}
        {{- with .podLabels }}{{ . | nindent 8 }}{{ end }}
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "8080"
    spec:
      serviceAccountName: {{ $name }}
      automountServiceAccountToken: true
      enableServiceLinks: true
      terminationGracePeriodSeconds: {{ .grace | default 10 }}
      securityContext:
        runAsNonRoot: true
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: manager
          image: {{ include "flux.image" $of | quote }}
          imagePullPolicy: {{ $towline.imagePullPolicy | default "IfNotPresent" | quote }}
          args:
            - --watch-all-namespaces
            - --enable-leader-election
            - --log-encoding=json
            - {{ printf "--log-level=%s" $root.Values.logLevel | quote }}
            - --concurrent={{ int $values.concurrent }}
            {{- range .args }}
            - {{ . | quote }}
            {{- end }}
          env:
            - name: RUNTIME_NAMESPACE
              valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
            # The runtime keeps below the limit instead of being killed at it.
            - name: GOMEMLIMIT
              valueFrom: {resourceFieldRef: {containerName: manager, resource: limits.memory}}
            {{- with .env }}{{ . | nindent 12 }}{{ end }}
          ports:
            - {name: http-prom, containerPort: 8080, protocol: TCP}
            - {name: healthz, containerPort: 9440, protocol: TCP}
            {{- with .ports }}{{ . | nindent 12 }}{{ end }}
          livenessProbe:
            httpGet: {path: /healthz, port: healthz}
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {{ .readiness | default "{path: /readyz, port: healthz}" }}
            periodSeconds: 2
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          resources: {{- toYaml $values.resources | nindent 12 }}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
            {{- with .mounts }}{{ . | nindent 12 }}{{ end }}
      volumes:
        - {name: tmp, emptyDir: {{ .tmp | default "{sizeLimit: 2Gi}" }}}
        {{- with .volumes }}{{ . | nindent 8 }}{{ end }}
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets: {{- range . }}
        - name: {{ . | quote }}
        {{- end }}
      {{- end }}
      {{- with $root.Values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $root.Values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $root.Values.priorityClassName }}
      priorityClassName: {{ . | quote }}
      {{- end }}
{{- end }}

{{/* Service account, what it may do in the cluster, and leader election in its namespace. Takes a dict: root, name, rules, and
annotations of the account (YAML). */}}
{{- define "flux.account" -}}
{{- $root := .root }}
{{- $labels := include "flux.labels" (list $root .name) }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- $labels | nindent 4 }}
  {{- with .annotations }}
  annotations: {{- . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ printf "%s:%s" $root.Release.Namespace .name }}
  labels: {{- $labels | nindent 4 }}
rules:
  - {apiGroups: [""], resources: [events], verbs: [create, patch]}
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ printf "%s:%s" $root.Release.Namespace .name }}
  labels: {{- $labels | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ printf "%s:%s" $root.Release.Namespace .name | quote }}}
subjects:
  - {kind: ServiceAccount, name: {{ .name }}, namespace: {{ $root.Release.Namespace }}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- $labels | nindent 4 }}
rules:
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, watch, create, update, patch, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- $labels | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ .name }}}
subjects:
  - {kind: ServiceAccount, name: {{ .name }}, namespace: {{ $root.Release.Namespace }}}
{{- end }}

{{/* Resources of an API group, with their status and finalizers, as upstream's controllers have them. */}}
{{- define "flux.owns" -}}
{{- $kinds := .kinds }}
- {apiGroups: [{{ .group }}], resources: [{{ join ", " $kinds }}], verbs: [create, delete, get, list, patch, update, watch]}
- apiGroups: [{{ .group }}]
  resources: [{{ range $i, $kind := $kinds }}{{ if $i }}, {{ end }}{{ $kind }}/finalizers{{ end }}]
  verbs: [create, delete, get, patch, update]
- apiGroups: [{{ .group }}]
  resources: [{{ range $i, $kind := $kinds }}{{ if $i }}, {{ end }}{{ $kind }}/status{{ end }}]
  verbs: [get, patch, update]
{{- end }}

{{/* Acting as service accounts: those of these names in any namespace, or all. */}}
{{- define "flux.impersonates" -}}
- apiGroups: [""]
  resources: [serviceaccounts]
  {{- with . }}
  resourceNames: {{ toJson . }}
  {{- end }}
  verbs: [impersonate]
{{- end }}
