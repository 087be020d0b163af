{{/* Settings that depend on the platform. A value that the user sets takes precedence. */}}

{{- define "ambit.cniBinDir" -}}
{{- $platform := .Values.global.platform -}}
{{- if .Values.cni.cniBinDir -}} {{ .Values.cni.cniBinDir }}
{{- else if eq $platform "gke" -}} /home/kubernetes/bin
{{- else if eq $platform "openshift" -}} /var/lib/cni/bin
{{- else if eq $platform "k3s" -}} /var/lib/rancher/k3s/data/cni
{{- else if eq $platform "k3d" -}} /bin
{{- else if eq $platform "microk8s" -}} /var/snap/microk8s/current/opt/cni/bin
{{- else -}} /opt/cni/bin
{{- end -}}
{{- end }}

{{- define "ambit.cniConfDir" -}}
{{- $platform := .Values.global.platform -}}
{{- if .Values.cni.cniConfDir -}} {{ .Values.cni.cniConfDir }}
{{- else if eq $platform "openshift" -}} /etc/cni/multus/net.d
{{- else if or (eq $platform "k3s") (eq $platform "k3d") -}} /var/lib/rancher/k3s/agent/etc/cni/net.d
{{- else if eq $platform "microk8s" -}} /var/snap/microk8s/current/args/cni-network
{{- else -}} /etc/cni/net.d
{{- end -}}
{{- end }}

{{- define "ambit.cniNetnsDir" -}}
{{- if .Values.cni.cniNetnsDir -}} {{ .Values.cni.cniNetnsDir }}
{{- else if eq .Values.global.platform "minikube" -}} /var/run/docker/netns
{{- else -}} /var/run/netns
{{- end -}}
{{- end }}

{{- define "ambit.cniConfFileName" -}}
{{- if .Values.cni.cniConfFileName -}} {{ .Values.cni.cniConfFileName }}
{{- else if eq .Values.global.platform "openshift" -}} istio-cni.conf
{{- end -}}
{{- end }}

{{- define "ambit.chained" -}}
{{- if kindIs "bool" .Values.cni.chained -}} {{ .Values.cni.chained }}
{{- else -}} {{ ne .Values.global.platform "openshift" }}
{{- end -}}
{{- end }}

{{/* Whether to create a ResourceQuota: "true" or an empty string. */}}
{{- define "ambit.resourceQuotas" -}}
{{- $wanted := eq .Values.global.platform "gke" -}}
{{- if kindIs "bool" .Values.cni.resourceQuotas.enabled -}}
{{- $wanted = .Values.cni.resourceQuotas.enabled -}}
{{- end -}}
{{- if $wanted -}} true {{- end -}}
{{- end }}

{{/* seLinuxOptions of a container. The argument is a list: root context, values of the component. */}}
{{- define "ambit.seLinuxOptions" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
{{- if $values.seLinuxOptions -}}
{{ toYaml $values.seLinuxOptions }}
{{- else if eq $root.Values.global.platform "openshift" -}}
type: spc_t
{{- end -}}
{{- end }}
