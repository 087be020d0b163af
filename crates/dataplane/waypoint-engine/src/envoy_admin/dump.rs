//! Serializes the selected sections of a dump (`envoy.admin.v3.ConfigDump`), and the state of clusters
//! (`envoy.admin.v3.Clusters`). Elements are rendered one by one while the text is written, so that a dump takes little
//! more memory than its text.

use std::time::Instant;

use ambit_certificates::CertificateDump;
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value, json};

use super::{
    bootstrap::{self, Node},
    clusters, endpoints, extensions, listeners,
    names::MAIN_INTERNAL,
    proto_json::type_url,
    routes,
    secrets::Secrets,
    selection::Section,
    snapshot::{Cluster, Snapshot},
};
use crate::waypoint::Waypoint;

/// State of the waypoint from which a dump is rendered.
#[derive(Debug)]
pub(super) struct DumpSource<'a> {
    pub(super) waypoint: &'a Waypoint,
    pub(super) snapshot: &'a Snapshot,
    pub(super) node: Node<'a>,
    pub(super) certificates: &'a [CertificateDump],
    pub(super) now: Instant,
}

/// `envoy.admin.v3.ConfigDump` with the selected sections.
#[derive(Debug, Serialize)]
pub(super) struct ConfigDump<'a> {
    configs: Vec<SectionDump<'a>>,
}

impl<'a> ConfigDump<'a> {
    /// Creates the dump of the sections that a request selects.
    pub(super) fn new(source: &'a DumpSource<'a>, sections: &[Section]) -> Self {
        let dump = |section: &Section| SectionDump {
            source,
            section: *section,
        };
        Self {
            configs: sections.iter().map(dump).collect(),
        }
    }
}

/// `envoy.admin.v3.Clusters`: the state of all clusters and their endpoints.
#[derive(Debug)]
pub(super) struct ClusterStatuses<'a>(pub(super) &'a DumpSource<'a>);

impl Serialize for ClusterStatuses<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let source = self.0;
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(
            "cluster_statuses",
            &LazyJsonList(|| {
                source.clusters().map(|(name, cluster)| {
                    let all = cluster.endpoints(source.waypoint, source.now);
                    endpoints::cluster_status(&name, &all)
                })
            }),
        )?;
        map.end()
    }
}

impl DumpSource<'_> {
    /// Iterates over all clusters with their names.
    fn clusters(&self) -> impl Iterator<Item = (String, &Cluster)> {
        let Snapshot {
            names, clusters, ..
        } = self.snapshot;
        clusters
            .iter()
            .map(|cluster| (names.name_of_cluster(&cluster.key), cluster))
    }

    fn cluster_dumps(&self) -> impl Iterator<Item = Value> {
        self.clusters().map(|(name, cluster)| {
            let Cluster {
                key,
                service,
                resolves_hosts,
                ..
            } = cluster;
            let policy = cluster.policy();
            json!({"cluster": clusters::cluster(&name, key, service, policy, *resolves_hosts)})
        })
    }

    fn endpoint_dumps(&self) -> impl Iterator<Item = Value> {
        self.clusters().map(|(name, cluster)| {
            let all = cluster.endpoints(self.waypoint, self.now);
            json!({"endpoint_config": endpoints::load_assignment(&name, &all)})
        })
    }

    fn route_dumps(&self) -> impl Iterator<Item = Value> {
        let ports = self.snapshot.ports.iter();
        ports.filter(|port| port.is_http()).flat_map(|port| {
            let clients = port.client_namespaces().into_iter().map(Some);
            std::iter::once(None).chain(clients).map(|clients| {
                let names = &self.snapshot.names;
                json!({"route_config": routes::configuration(names, port, clients)})
            })
        })
    }

    fn filter_chains(&self) -> impl Iterator<Item = Value> {
        let network = &self.waypoint.config.network;
        let ports = self.snapshot.ports.iter();
        ports.flat_map(|port| listeners::filter_chains(&self.snapshot.names, network, port))
    }
}

/// One section of `envoy.admin.v3.ConfigDump`.
#[derive(Debug)]
struct SectionDump<'a> {
    source: &'a DumpSource<'a>,
    section: Section,
}

impl Serialize for SectionDump<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let source = self.source;
        let config = &source.waypoint.config;
        let mut map = serializer.serialize_map(None)?;
        let message = match self.section {
            Section::Bootstrap => "envoy.admin.v3.BootstrapConfigDump",
            Section::Clusters => "envoy.admin.v3.ClustersConfigDump",
            Section::Endpoints => "envoy.admin.v3.EndpointsConfigDump",
            Section::Listeners => "envoy.admin.v3.ListenersConfigDump",
            Section::Routes => "envoy.admin.v3.RoutesConfigDump",
            Section::Secrets => "envoy.admin.v3.SecretsConfigDump",
            Section::Extensions => "envoy.admin.v3.EcdsConfigDump",
        };
        map.serialize_entry("@type", &type_url(message))?;
        match self.section {
            Section::Bootstrap => {
                let bootstrap = bootstrap::bootstrap(config, &source.node);
                map.serialize_entry("bootstrap", &bootstrap)?;
            }
            Section::Clusters => {
                let fixed = clusters::builtin_clusters().map(|cluster| json!({"cluster": cluster}));
                map.serialize_entry("static_clusters", &fixed)?;
                let dumps = LazyJsonList(|| source.cluster_dumps());
                map.serialize_entry("dynamic_active_clusters", &dumps)?;
            }
            Section::Endpoints => {
                let dumps = LazyJsonList(|| source.endpoint_dumps());
                map.serialize_entry("dynamic_endpoint_configs", &dumps)?;
            }
            Section::Listeners => {
                let fixed = listeners::process_listeners(config);
                let fixed = fixed.map(|listener| json!({"listener": listener}));
                map.serialize_entry("static_listeners", &fixed)?;
                map.serialize_entry("dynamic_listeners", &DynamicListeners(source))?;
            }
            Section::Routes => {
                let dumps = LazyJsonList(|| source.route_dumps());
                map.serialize_entry("dynamic_route_configs", &dumps)?;
            }
            Section::Secrets => {
                let own = config.identity().to_string();
                let secrets = Secrets::new(&own, source.certificates);
                map.serialize_entry("dynamic_active_secrets", &secrets.active)?;
                map.serialize_entry("dynamic_warming_secrets", &secrets.warming)?;
            }
            Section::Extensions => {
                let plugins = source.waypoint.published.desired_plugins();
                let filter = |plugin: &std::sync::Arc<crate::extensions::Plugin>| {
                    extensions::filter(&plugin.config, config.plugins)
                };
                let filters: Vec<_> = plugins.iter().map(filter).collect();
                map.serialize_entry("ecds_filters", &filters)?;
            }
        }
        map.end()
    }
}

/// Listeners that depend on the control plane's records, in a `ListenersConfigDump`.
struct DynamicListeners<'a>(&'a DumpSource<'a>);

impl Serialize for DynamicListeners<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let source = self.0;
        let terminate = listeners::connect_terminate(&source.waypoint.config);
        let terminate = json!({
            "name": listeners::CONNECT_TERMINATE,
            "active_state": {"listener": terminate},
        });
        let main = DynamicListener {
            name: MAIN_INTERNAL,
            active_state: ActiveState {
                listener: InternalListener {
                    message: listeners::listener_type(),
                    name: MAIN_INTERNAL,
                    internal_listener: json!({}),
                    filter_chains: LazyJsonList(|| source.filter_chains()),
                },
            },
        };
        (terminate, main).serialize(serializer)
    }
}

#[derive(Serialize)]
struct DynamicListener<L> {
    name: &'static str,
    active_state: ActiveState<L>,
}

#[derive(Serialize)]
struct ActiveState<L> {
    listener: L,
}

/// Listener `main_internal`, with filter chains for each port of each served service.
#[derive(Serialize)]
struct InternalListener<C> {
    #[serde(rename = "@type")]
    message: String,
    name: &'static str,
    internal_listener: Value,
    filter_chains: C,
}

/// JSON list whose elements are rendered one by one during serialization.
struct LazyJsonList<F>(F);

impl<F, I> Serialize for LazyJsonList<F>
where
    F: Fn() -> I,
    I: Iterator<Item = Value>,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}
