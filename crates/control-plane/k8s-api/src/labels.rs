//! Names of labels and annotations, and their well-known values, one constant each.

/// Label of a namespace or pod: [`DATAPLANE_MODE_AMBIENT`] enrols it in the mesh, `none` keeps it
/// out.
pub const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";
/// Value of [`DATAPLANE_MODE`] that enrols pods in the mesh.
pub const DATAPLANE_MODE_AMBIENT: &str = "ambient";
/// Value of [`DATAPLANE_MODE`] that keeps pods out of the mesh.
pub const DATAPLANE_MODE_NONE: &str = "none";
/// Annotation of a pod, which the node agent writes when it captures the pod.
pub const REDIRECTION: &str = "ambient.istio.io/redirection";
/// Value of [`REDIRECTION`] for a captured pod.
pub const REDIRECTION_ENABLED: &str = "enabled";
/// Value of [`REDIRECTION`] for a pod whose capture is in progress, or uncertain.
pub const REDIRECTION_PENDING: &str = "pending";
/// Label of a workload that terminates HBONE itself: a comma-separated list that contains `http`.
pub const TUNNEL: &str = "networking.istio.io/tunnel";
/// Label of the control plane's namespace: the name of the cluster's network.
pub const NETWORK: &str = "topology.istio.io/network";
/// Label of a Node: the region that it is in.
pub const REGION: &str = "topology.kubernetes.io/region";
/// Label of a Node: the zone that it is in.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// Label of a Node: the subzone that it is in.
pub const SUBZONE: &str = "topology.istio.io/subzone";
/// Label of a pod that overrides the name of its workload.
pub const WORKLOAD_NAME: &str = "service.istio.io/workload-name";
/// Label of a pod: its canonical service name.
pub const CANONICAL_NAME: &str = "service.istio.io/canonical-name";
/// Label of a pod: the revision of its canonical service.
pub const CANONICAL_REVISION: &str = "service.istio.io/canonical-revision";
/// Recommended Kubernetes label: application name.
pub const APP_NAME: &str = "app.kubernetes.io/name";
/// Recommended Kubernetes label: application version.
pub const APP_VERSION: &str = "app.kubernetes.io/version";
/// Common label: application name.
pub const APP: &str = "app";
/// Common label: application version.
pub const VERSION: &str = "version";
/// Label that Kubernetes puts on the pods of a Deployment's ReplicaSet: hash of the pod template.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";
/// Label that Argo Rollouts puts on the pods of a Rollout: hash of the pod template.
pub const ROLLOUTS_POD_TEMPLATE_HASH: &str = "rollouts-pod-template-hash";
/// Annotation that OpenShift puts on the pods of a DeploymentConfig.
pub const DEPLOYMENT_CONFIG: &str = "openshift.io/deployment-config.name";
/// Label of an EndpointSlice: name of the Service that it belongs to.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Annotation of a Service, ServiceEntry or Namespace: traffic distribution among endpoints, such as `PreferClose`.
pub const TRAFFIC_DISTRIBUTION: &str = "networking.istio.io/traffic-distribution";
/// Annotation of an AuthorizationPolicy: its decisions are logged and not enforced.
pub const DRY_RUN: &str = "istio.io/dry-run";
/// Annotation of an AuthorizationPolicy with `targetRefs`: name of the layer 4 policy, in the same namespace, that it
/// is the waypoint's copy of.
pub const MIGRATED_FROM: &str = "ambit.io/migrated-from";
/// Label of a ServiceEntry: `false` disables the automatic allocation of virtual addresses.
pub const AUTO_ALLOCATE_IP: &str = "networking.istio.io/enable-autoallocate-ip";
/// Label of an object or its namespace: name of the Gateway whose waypoint the object uses, or `none`.
pub const USE_WAYPOINT: &str = "istio.io/use-waypoint";
/// Label: namespace of the Gateway that [`USE_WAYPOINT`] names; the object's own if absent.
pub const USE_WAYPOINT_NAMESPACE: &str = "istio.io/use-waypoint-namespace";
/// Label: Gateway of a canary waypoint besides [`USE_WAYPOINT`], for a percentage of the connections to services.
pub const USE_WAYPOINT_CANARY: &str = "istio.io/use-waypoint-canary";
/// Label: namespace of the Gateway that [`USE_WAYPOINT_CANARY`] names; the object's own if absent.
pub const USE_WAYPOINT_CANARY_NAMESPACE: &str = "istio.io/use-waypoint-canary-namespace";
/// Annotation: percentage of connections for [`USE_WAYPOINT_CANARY`]; 0 if absent.
pub const USE_WAYPOINT_CANARY_WEIGHT: &str = "istio.io/use-waypoint-canary-weight";
/// Label of a Service or Namespace: whether ingress gateways route through the service's waypoint,
/// `true` or `false`.
pub const INGRESS_USE_WAYPOINT: &str = "istio.io/ingress-use-waypoint";
/// Label of a Gateway or its namespace: revision of the control plane that manages it.
pub const REVISION: &str = "istio.io/rev";
/// Label of a control plane's Service: a further name of its revision.
pub const TAG: &str = "istio.io/tag";
/// Label of all objects in Ambit's chart, with the value `ambit`.
pub const PART_OF: &str = "app.kubernetes.io/part-of";
/// Label of a Gateway or GatewayClass: destinations that the waypoint serves, `service`,
/// `workload`, `all` or `none`.
pub const WAYPOINT_FOR: &str = "istio.io/waypoint-for";
/// Annotation of a Gateway: service account whose pods it attaches without labels, instead of all pods of its
/// namespace.
pub const FOR_SERVICE_ACCOUNT: &str = "istio.io/for-service-account";
/// Annotation of a Gateway: whether requests to applications contain the client's identity in
/// `x-forwarded-client-cert`.
pub const XFCC_CLIENT_IDENTITY: &str = "ambient.istio.io/xfcc-include-client-identity";
/// Annotation of a Gateway or GatewayClass: how node proxies hand connections from HBONE tunnels over to the waypoint's
/// pods, `PROXY` or `NONE`, with an optional port after a slash.
pub const INBOUND_BINDING: &str = "ambient.istio.io/waypoint-inbound-binding";
/// Annotation of a Gateway: settings of its waypoint, as YAML.
pub const PROXY_CONFIG: &str = "proxy.istio.io/config";
/// Label of a pod that is an instance of a Gateway: the Gateway's name.
pub const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// Label of objects that are generated for a Gateway.
pub const GATEWAY_MANAGED: &str = "gateway.istio.io/managed";
/// Label that Kubernetes puts on each namespace: its name.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// Label of a Secret with registry credentials: waypoints receive it if a WasmPlugin of its namespace names it.
pub const IMAGE_PULL: &str = "ambit.io/image-pull";
/// Label selector of Secrets with [`IMAGE_PULL`].
pub const IMAGE_PULL_SELECTOR: &str = "ambit.io/image-pull=true";
/// Annotation of a manifest that only changes an object of another manifest, and creates none by itself. The merged
/// object does not have the annotation.
pub const OVERLAY: &str = "ambit.io/overlay";
