{{/* Labels of every object; the argument is the root context. */}}
{{- define "ambit.labels" -}}
app.kubernetes.io/part-of: ambit
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* The image called by the second item of a list, of the mesh of the first. */}}
{{- define "ambit.image" -}}
{{- $root := index . 0 -}}
{{ $root.Values.global.hub }}/{{ index . 1 }}:{{ $root.Values.global.tag | default $root.Chart.AppVersion }}
{{- end }}

{{- define "ambit.controlAddress" -}}
https://istiod.{{ .Release.Namespace }}.svc:15012
{{- end }}

{{/* How waypoints are deployed, as JSON for the control plane; the rest it knows itself. */}}
{{- define "ambit.waypoints" -}}
{{- $global := .Values.global -}}
{{- $images := dict "imagePullPolicy" $global.imagePullPolicy "imagePullSecrets" $global.imagePullSecrets -}}
{{- $rest := dict "image" (include "ambit.image" (list . "waypoint")) "network" $global.network -}}
{{- $log := dict "logLevel" $global.logging.level "logAsJson" $global.logAsJson -}}
{{ merge $rest $images $log $global.waypoint | toJson }}
{{- end }}

{{/* Kubernetes' minor version as a number; some platforms write "31+". */}}
{{- define "ambit.minor" -}}
{{ .Capabilities.KubeVersion.Minor | trimSuffix "+" }}
{{- end }}

{{/* Annotations of what the Job that unenrols all pods needs: created before it, deleted when it has ended. */}}
{{- define "ambit.releaseHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: "-1"
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
