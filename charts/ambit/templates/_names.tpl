{{/* Labels of every object; the argument is the root context. */}}
{{- define "ambit.labels" -}}
app.kubernetes.io/part-of: ambit
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* Image reference. The argument is a list: root context, name of the image. */}}
{{- define "ambit.image" -}}
{{- $root := index . 0 -}}
{{ $root.Values.global.hub }}/{{ index . 1 }}:{{ $root.Values.global.tag | default $root.Chart.AppVersion }}
{{- end }}

{{/* Revision of this release's control plane. */}}
{{- define "ambit.revision" -}}
{{- $global := .Values.global.revision -}}
{{- $alias := .Values.revision -}}
{{- if and $global $alias (ne $global $alias) -}}
{{- fail (printf "revision: %s and global.revision: %s are the same setting: leave one of them out" $alias $global) -}}
{{- end -}}
{{- if hasKey (.Values.pilot.env | default (dict)) "REVISION" -}}
{{- fail "pilot.env.REVISION: the names of objects depend on the revision, too: set global.revision instead" -}}
{{- end -}}
{{ $global | default $alias | default "default" }}
{{- end }}

{{/* End of names that each revision has. The argument is a revision; the default one has none. */}}
{{- define "ambit.suffix" -}}
{{- if ne . "default" -}} -{{ . }} {{- end -}}
{{- end }}

{{/* Name of the control plane's Deployment, ServiceAccount and roles. */}}
{{- define "ambit.control" -}}
ambit-control{{ include "ambit.suffix" (include "ambit.revision" .) }}
{{- end }}

{{/* Name of the control plane's Service. */}}
{{- define "ambit.controlService" -}}
istiod{{ include "ambit.suffix" (include "ambit.revision" .) }}
{{- end }}

{{/* Labels that select the pods of this revision's control plane, and no other's. */}}
{{- define "ambit.controlSelector" -}}
app: istiod
istio.io/rev: {{ include "ambit.revision" . }}
{{- end }}

{{/* Ports of the control plane's Services. */}}
{{- define "ambit.controlPorts" -}}
- {name: https-dns, port: 15012, targetPort: 15012, protocol: TCP}
- {name: http-monitoring, port: 15014, targetPort: 15014, protocol: TCP}
{{- if .Values.global.flows.enabled }}
- {name: https-flows, port: 15016, targetPort: 15016, protocol: TCP}
{{- end }}
{{- end }}

{{/* DNS names of the control plane, separated by commas: of its Service and of its tags. */}}
{{- define "ambit.controlNames" -}}
{{- $services := list (include "ambit.controlService" .) -}}
{{- range .Values.revisionTags -}}
{{- $services = prepend $services (printf "istiod-revision-tag-%s" .) -}}
{{- end -}}
{{- $names := list -}}
{{- range $services -}}
{{- $host := printf "%s.%s.svc" . $.Release.Namespace -}}
{{- $names = prepend (prepend $names (printf "%s.%s" $host $.Values.global.proxy.clusterDomain)) $host -}}
{{- end -}}
{{ join "," $names }}
{{- end }}

{{/* Revision whose control plane the node proxies use. */}}
{{- define "ambit.nodeRevision" -}}
{{ .Values.ztunnel.revision | default (include "ambit.revision" .) }}
{{- end }}

{{/* Address of that control plane. */}}
{{- define "ambit.controlAddress" -}}
https://istiod{{ include "ambit.suffix" (include "ambit.nodeRevision" .) }}.{{ .Release.Namespace }}.svc:15012
{{- end }}

{{/* Which parts this release installs: "true" or an empty string. */}}
{{- define "ambit.hasControlPlane" -}}
{{- if ne .Values.global.components "node" -}} true {{- end -}}
{{- end }}

{{- define "ambit.hasNodeParts" -}}
{{- if ne .Values.global.components "control-plane" -}} true {{- end -}}
{{- end }}

{{/* Deployment settings of waypoints, as JSON for the control plane, which has defaults for all others. */}}
{{- define "ambit.waypoints" -}}
{{- $global := .Values.global -}}
{{- $images := dict "imagePullPolicy" $global.imagePullPolicy "imagePullSecrets" $global.imagePullSecrets -}}
{{- $rest := dict "image" (include "ambit.image" (list . "waypoint")) "network" $global.network -}}
{{- $ca := dict "caAddress" ($global.waypoint.caAddress | default .Values.ztunnel.caAddress) "peerCaCrl" .Values.ztunnel.peerCaCrl.enabled -}}
{{- $log := dict "logLevel" $global.logging.level "logAsJson" $global.logAsJson "metricsPrincipals" $global.metrics.principals -}}
{{- $spiffe := dict -}}
{{- if $global.spiffe.enabled -}}
{{- $spiffe = dict "spiffe" $global.spiffe.workloadApi -}}
{{- end -}}
{{- $telemetry := dict -}}
{{- if $global.openTelemetry.endpoint -}}
{{- $telemetry = dict "openTelemetry" $global.openTelemetry -}}
{{- end -}}
{{ merge $rest $ca $spiffe $images $log $telemetry (omit $global.waypoint "servicePolicyScope" "caAddress") | toJson }}
{{- end }}

{{/* Environment variables of the exports to an OpenTelemetry collector, as a map. */}}
{{- define "ambit.openTelemetry" -}}
{{- with .Values.global.openTelemetry -}}
{{- if .endpoint }}
OTEL_EXPORTER_OTLP_ENDPOINT: {{ .endpoint | quote }}
OTEL_EXPORTER_OTLP_PROTOCOL: {{ .protocol | quote }}
{{- if not .metrics }}
OTEL_METRICS_EXPORTER: none
{{- end }}
{{- if not .logs }}
OTEL_LOGS_EXPORTER: none
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Environment variable with the headers of the exports to an OpenTelemetry collector, from a Secret. */}}
{{- define "ambit.openTelemetryHeaders" -}}
{{- with .Values.global.openTelemetry -}}
{{- if and .endpoint .headersSecret.name }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ .headersSecret.name | quote }}, key: {{ .headersSecret.key | quote }}, optional: true}}
{{- end }}
{{- end }}
{{- end }}

{{/* All OpenTelemetry variables, as entries of a container's env. */}}
{{- define "ambit.openTelemetryEnv" -}}
{{- range $name, $value := include "ambit.openTelemetry" . | fromYaml }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- include "ambit.openTelemetryHeaders" . }}
{{- end }}

{{/* Minor version of Kubernetes as a number; some platforms report "31+". */}}
{{- define "ambit.minor" -}}
{{ .Capabilities.KubeVersion.Minor | trimSuffix "+" }}
{{- end }}

{{/* Hook annotations of the objects that the unenrolment Job needs: created before it, deleted when it has ended. */}}
{{- define "ambit.releaseHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: "-1"
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/*
Merges labels or annotations. The argument is a list: defaults as YAML text, and the user's map, which takes precedence.
*/}}
{{- define "ambit.pairs" -}}
{{- $user := index . 1 | default (dict) -}}
{{- range $name, $value := index . 0 | fromYaml -}}
{{- if not (hasKey $user $name) }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}
{{- range $name, $value := $user }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}

{{/*
Merges pod labels like ambit.pairs, and rejects the key app, by which the mesh selects its pods. The third item of the
argument is the path of the user's map in the values.
*/}}
{{- define "ambit.podLabels" -}}
{{- if hasKey (index . 1 | default (dict)) "app" -}}
{{- fail (printf "%s.app: the mesh selects its pods by this label, so it cannot be another: choose another key" (index . 2)) -}}
{{- end -}}
{{- include "ambit.pairs" . -}}
{{- end }}

{{/*
Merges environment variables. The argument is a list: defaults as YAML text, and the user's map, which takes precedence.
*/}}
{{- define "ambit.env" -}}
{{- $user := index . 1 | default (dict) -}}
{{- range index . 0 | fromYamlArray -}}
{{- if not (hasKey $user .name) }}
- {{ toJson . }}
{{- end }}
{{- end }}
{{- range $name, $value := $user }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
