{{/* Labels, annotations and environment of Ambit's own pods, before the user's values are merged. */}}

{{- define "ambit.agent.podLabels" -}}
app: ambit-agent
k8s-app: istio-cni-node
istio.io/dataplane-mode: none
sidecar.istio.io/inject: "false"
{{- include "ambit.labels" . | nindent 0 }}
{{- end }}

{{- define "ambit.agent.podAnnotations" -}}
prometheus.io/scrape: "true"
prometheus.io/port: "15014"
prometheus.io/path: /metrics
{{- if lt (include "ambit.minor" . | int) 30 }}
container.apparmor.security.beta.kubernetes.io/agent: unconfined
{{- end }}
ambit.io/config-checksum: {{ include "ambit.agentConfig" . | sha256sum }}
{{- end }}

{{- define "ambit.control.podLabels" -}}
{{- if hasKey (.Values.pilot.podLabels | default (dict)) "istio.io/rev" -}}
{{- fail "pilot.podLabels.istio.io/rev: the revision's Service selects its pods by this label: set global.revision instead" -}}
{{- end -}}
app: istiod
# As in Istio, for whose tools these labels are: those of a revision other than the default one must not be selected by
# the Service istiod, which may be Istio's.
istio: {{ if eq (include "ambit.revision" .) "default" }}pilot{{ else }}istiod{{ end }}
istio.io/rev: {{ include "ambit.revision" . }}
istio.io/dataplane-mode: none
sidecar.istio.io/inject: "false"
{{- include "ambit.labels" . | nindent 0 }}
{{- end }}

{{- define "ambit.control.podAnnotations" -}}
prometheus.io/scrape: "true"
prometheus.io/port: "15014"
prometheus.io/path: /metrics
{{- end }}

{{- define "ambit.control.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: SERVICE_ACCOUNT
  valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}
- name: ROOT_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- if .Values.global.flows.enabled }}
- {name: AMBIT_LISTEN_FLOWS, value: "0.0.0.0:15016"}
{{- end }}
- name: TRUST_DOMAIN
  value: {{ .Values.meshConfig.trustDomain | quote }}
- name: CLUSTER_ID
  value: {{ .Values.global.multiCluster.clusterName | quote }}
- name: CLUSTER_DOMAIN
  value: {{ .Values.global.proxy.clusterDomain | quote }}
- name: TOKEN_AUDIENCES
  value: istio-ca
- name: CA_TRUSTED_NODE_ACCOUNTS
  value: {{ prepend .Values.pilot.trustedNodeAccounts (printf "%s/ztunnel" .Release.Namespace) | join "," | quote }}
- name: MAX_WORKLOAD_CERT_TTL
  value: {{ .Values.pilot.maxWorkloadCertTTL | quote }}
# Enablement rules of the agents: node proxies receive certificates only for pods that the agents capture.
{{- with .Values.cni.ambient.enablementSelectors }}
- name: AMBIENT_ENABLEMENT_SELECTOR
  value: {{ toJson . | quote }}
{{- end }}
{{- with .Values.cni.excludeNamespaces }}
- name: EXCLUDE_NAMESPACES
  value: {{ join "," . | quote }}
{{- end }}
{{- if .Values.pilot.taint.enabled }}
- {name: PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS, value: "true"}
- name: PILOT_NODE_UNTAINT_CONTROLLERS_TAINT_NAME
  value: {{ .Values.pilot.taint.key }}
{{- end }}
{{- if .Values.pilot.resetRestartBackoff }}
- {name: AMBIT_RESET_RESTART_BACKOFF, value: "true"}
{{- end }}
{{- if .Values.pilot.imagePullSecrets }}
- {name: AMBIT_IMAGE_PULL_SECRETS, value: "true"}
{{- end }}
- name: ROOT_CA_DIR
  value: /etc/cacerts
- name: REVISION
  value: {{ include "ambit.revision" . }}
- name: AMBIT_SERVER_SAN
  value: {{ include "ambit.controlNames" . }}
- name: AMBIT_WAYPOINT_ATTACHMENT
  value: {{ .Values.meshConfig.waypointAttachment | quote }}
- name: AMBIT_WORKLOAD_WAYPOINTS
  value: {{ .Values.meshConfig.workloadWaypoints | quote }}
- name: AMBIT_WAYPOINT_MISSING
  value: {{ .Values.meshConfig.waypointMissing | quote }}
- name: AMBIT_WAYPOINT_BINDING
  value: {{ .Values.meshConfig.waypointBinding | quote }}
- name: AMBIT_OUTBOUND_TRAFFIC_POLICY
  value: {{ .Values.meshConfig.outboundTrafficPolicy.mode | quote }}
- name: AMBIT_PATH_NORMALIZATION
  value: {{ .Values.meshConfig.pathNormalization.normalization | quote }}
- name: AMBIT_TRUSTED_PROXIES
  value: {{ .Values.meshConfig.defaultConfig.gatewayTopology.numTrustedProxies | quote }}
{{- with .Values.global.egress.allowedAddresses }}
- name: AMBIT_EGRESS_ALLOWED_ADDRESSES
  value: {{ join "," . | quote }}
{{- end }}
- name: AMBIT_REFERENCE_GRANTS
  value: {{ .Values.meshConfig.referenceGrants | quote }}
- name: AMBIT_SERVICE_POLICY_SCOPE
  value: {{ .Values.global.waypoint.servicePolicyScope | quote }}
- name: AMBIT_WAYPOINTS
  value: {{ include "ambit.waypoints" . | quote }}
- name: RUST_LOG
  value: {{ .Values.global.logging.level | quote }}
- name: LOG_FORMAT
  value: {{ if .Values.global.logAsJson }}json{{ else }}plain{{ end }}
{{- include "ambit.openTelemetryEnv" . }}
{{- end }}

{{- define "ambit.nodeProxy.podLabels" -}}
app: ztunnel
istio.io/dataplane-mode: none
# The node proxy terminates HBONE to its own pod: mesh pods scrape its metrics through a tunnel.
networking.istio.io/tunnel: http
sidecar.istio.io/inject: "false"
{{- include "ambit.labels" . | nindent 0 }}
{{- end }}

{{- define "ambit.nodeProxy.podAnnotations" -}}
prometheus.io/scrape: "true"
prometheus.io/port: "15020"
prometheus.io/path: /metrics
kubectl.kubernetes.io/default-container: node-proxy
{{- end }}

{{- define "ambit.nodeProxy.env" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: SERVICE_ACCOUNT
  valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}
{{- if .Values.ztunnel.standby }}
- {name: AMBIT_PAIR_UDS, value: /tmp/pair.sock}
{{- end }}
- name: INSTANCE_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
- name: XDS_ADDRESS
  value: {{ .Values.ztunnel.xdsAddress | default (include "ambit.controlAddress" .) | quote }}
- name: CA_ADDRESS
  value: {{ .Values.ztunnel.caAddress | default (include "ambit.controlAddress" .) | quote }}
{{- if .Values.global.spiffe.enabled }}
- name: AMBIT_SPIRE_ADMIN_SOCKET
  value: {{ printf "unix:///var/run/spire/%s" .Values.global.spiffe.delegatedIdentity.socket | quote }}
{{- end }}
- name: TRUST_DOMAIN
  value: {{ .Values.meshConfig.trustDomain | quote }}
- name: CLUSTER_ID
  value: {{ .Values.global.multiCluster.clusterName | quote }}
- name: CLUSTER_DOMAIN
  value: {{ .Values.global.proxy.clusterDomain | quote }}
{{- with .Values.global.network }}
- name: NETWORK
  value: {{ . | quote }}
{{- end }}
- name: AMBIT_OUTBOUND_TRAFFIC_POLICY
  value: {{ .Values.meshConfig.outboundTrafficPolicy.mode | quote }}
{{- with .Values.global.egress.allowedAddresses }}
- name: AMBIT_EGRESS_ALLOWED_ADDRESSES
  value: {{ join "," . | quote }}
{{- end }}
- name: TERMINATION_GRACE_PERIOD_SECONDS
  value: {{ .Values.ztunnel.terminationGracePeriodSeconds | quote }}
{{- with .Values.ztunnel.unenrolledDrain }}
- name: AMBIT_UNENROLLED_DRAIN
  value: {{ . | quote }}
{{- end }}
{{- with .Values.ztunnel.missingPolicyGrace }}
- name: AMBIT_MISSING_POLICY_GRACE
  value: {{ . | quote }}
{{- end }}
{{- with .Values.ztunnel.waypointGrace }}
- name: AMBIT_WAYPOINT_GRACE
  value: {{ . | quote }}
{{- end }}
{{- if .Values.ztunnel.keepLastGoodPolicy }}
- name: AMBIT_KEEP_LAST_GOOD_POLICY
  value: "true"
{{- end }}
{{- if not .Values.global.metrics.principals }}
- {name: AMBIT_METRICS_PRINCIPALS, value: "false"}
{{- end }}
{{- if .Values.global.flows.enabled }}
- name: AMBIT_FLOW_READER
  value: {{ printf "spiffe://%s/ns/%s/sa/ambit-control%s" .Values.meshConfig.trustDomain .Release.Namespace (include "ambit.suffix" (include "ambit.nodeRevision" .)) | quote }}
{{- end }}
- {name: AMBIT_TRUST_DOMAINS_PATH, value: /var/run/secrets/trust-domains/trust-domains.json}
{{- if .Values.ztunnel.peerCaCrl.enabled }}
- {name: CRL_PATH, value: /var/run/secrets/istio/crl/ca-crl.pem}
{{- end }}
- name: RUST_LOG
  value: {{ .Values.global.logging.level | quote }}
- name: LOG_FORMAT
  value: {{ if .Values.global.logAsJson }}json{{ else }}plain{{ end }}
{{- include "ambit.openTelemetryEnv" . }}
{{- end }}
