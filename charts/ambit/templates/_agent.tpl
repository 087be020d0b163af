{{/* Environment of the agent. Variables that Istio's agent also has keep their names. */}}
{{- define "ambit.agentDefaults" -}}
AMBIENT_DNS_CAPTURE: {{ .Values.cni.ambient.dnsCapture | quote }}
AMBIENT_ENABLEMENT_SELECTOR: {{ with .Values.cni.ambient.enablementSelectors }}{{ toJson . | quote }}{{ else }}""{{ end }}
AMBIENT_IPV6: {{ .Values.cni.ambient.ipv6 | quote }}
ALLOW_SWITCH_TO_HOST_NS: {{ not .Values.cni.ambient.shareHostNetworkNamespace | quote }}
CHAINED_CNI_PLUGIN: {{ include "ambit.chained" . | quote }}
CNI_AGENT_RUN_DIR: /var/run/istio-cni
CNI_AGENT_WAIT_SECONDS: {{ .Values.cni.agentWaitSeconds | quote }}
CNI_CONF_NAME: {{ include "ambit.cniConfFileName" . | quote }}
CNI_MODE: {{ .Values.cni.mode | quote }}
EXCLUDE_NAMESPACES: {{ .Values.cni.excludeNamespaces | join "," | quote }}
HOST_CNI_NET_DIR: {{ include "ambit.cniConfDir" . | quote }}
HOST_PREFIX: /host
HOST_PROBE_SNAT_IP: {{ .Values.cni.probeAddressIPv4 | quote }}
HOST_PROBE_SNAT_IPV6: {{ .Values.cni.probeAddressIPv6 | quote }}
HOST_PROC: /host/proc
INSTALL_CNI: "true"
ISTIO_OWNED_CNI_CONFIG: {{ .Values.cni.istioOwnedCNIConfig | quote }}
{{- with .Values.cni.istioOwnedCNIConfigFileName }}
ISTIO_OWNED_CNI_CONFIG_FILENAME: {{ . | quote }}
{{- end }}
KUBELET_CGROUP: {{ .Values.cni.kubeletCgroup | quote }}
KUBELET_UID: {{ .Values.cni.kubeletUser | int | quote }}
LOG_FORMAT: {{ if .Values.global.logAsJson }}json{{ else }}plain{{ end }}
MOUNTED_CNI_BIN_DIR: /host/opt/cni/bin
MOUNTED_CNI_NET_DIR: /host/etc/cni/net.d
PLUGIN_LOG_LEVEL: {{ .Values.cni.logging.level | default "info" | quote }}
PROBE_EXEMPTION: {{ .Values.cni.probeExemption | quote }}
RECONCILE_SECONDS: {{ .Values.cni.reconcileSeconds | quote }}
REDIRECTION_BACKEND: {{ .Values.cni.redirectionBackend | quote }}
RUST_LOG: {{ .Values.global.logging.level | quote }}
SYSTEM_NAMESPACE: {{ .Release.Namespace }}
{{- include "ambit.openTelemetry" . }}
XTABLES_LOCKFILE: /tmp/xtables.lock
ZTUNNEL_UDS_ADDRESS: /var/run/ztunnel/ztunnel.sock
{{- end }}

{{- define "ambit.agentConfig" -}}
{{- include "ambit.pairs" (list (include "ambit.agentDefaults" .) .Values.cni.env) | trim -}}
{{- end }}
