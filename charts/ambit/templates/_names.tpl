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

{{- define "ambit.controlAddress" -}}
https://istiod.{{ .Release.Namespace }}.svc:15012
{{- end }}

{{/* Deployment settings of waypoints, as JSON for the control plane, which has defaults for all others. */}}
{{- define "ambit.waypoints" -}}
{{- $global := .Values.global -}}
{{- $images := dict "imagePullPolicy" $global.imagePullPolicy "imagePullSecrets" $global.imagePullSecrets -}}
{{- $rest := dict "image" (include "ambit.image" (list . "waypoint")) "network" $global.network -}}
{{- $ca := dict "caAddress" ($global.waypoint.caAddress | default .Values.ztunnel.caAddress) "peerCaCrl" .Values.ztunnel.peerCaCrl.enabled -}}
{{- $log := dict "logLevel" $global.logging.level "logAsJson" $global.logAsJson "metricsPrincipals" $global.metrics.principals -}}
{{- $telemetry := dict -}}
{{- if $global.openTelemetry.endpoint -}}
{{- $telemetry = dict "openTelemetry" $global.openTelemetry -}}
{{- end -}}
{{ merge $rest $ca $images $log $telemetry (omit $global.waypoint "servicePolicyScope" "caAddress") | toJson }}
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
