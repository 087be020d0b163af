//! Envoy's admin interface, as far as `istioctl proxy-config` needs it: the state of the waypoint as the messages that
//! an Envoy in its place would dump (`envoy.admin.v3`).
//!
//! Served pages are `GET /config_dump` with `mask` or `include_eds`, which `istioctl` always sends, and `GET
//! /clusters`. Without these parameters, `/config_dump` is Ambit's own. A message is shown only where it means the same
//! in Envoy; settings without a field there are in `filter_metadata` under `ambit`, and authorization, telemetry and
//! rate limits are in Ambit's own dump alone. Private keys, tokens, configurations of plugins and values of headers
//! with credentials are never shown.

mod bootstrap;
mod chunks;
mod clusters;
mod dump;
mod endpoints;
mod extensions;
mod listeners;
mod names;
mod proto_json;
mod routes;
mod secrets;
mod selection;
mod snapshot;

use std::{sync::Arc, time::Instant};

use ambit_rt::http::{Request, Response, text};
use http::Method;
use tokio::sync::Semaphore;

use crate::waypoint::Waypoint;
use bootstrap::Node;
use dump::{ClusterStatuses, ConfigDump, DumpSource};
use selection::{Section, Selection};
use snapshot::Snapshot;

/// Maximum number of dumps that are written concurrently.
const MAX_CONCURRENT_DUMPS: usize = 4;

/// Envoy's admin interface of one waypoint.
#[derive(Debug)]
pub struct EnvoyAdmin(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    waypoint: Arc<Waypoint>,
    node: String,
    version: String,
    dumps: Arc<Semaphore>,
}

/// Page of Envoy's admin interface that the waypoint serves.
#[derive(Debug)]
enum Page {
    /// Selected sections of `envoy.admin.v3.ConfigDump`.
    ConfigDump(Vec<Section>),
    /// State of clusters: `envoy.admin.v3.Clusters`.
    Clusters,
}

impl EnvoyAdmin {
    /// Creates the interface of a waypoint that the control plane knows by this node id.
    pub fn new(waypoint: Arc<Waypoint>, node: String, version: String) -> Self {
        Self(Arc::new(Inner {
            waypoint,
            node,
            version,
            dumps: Arc::new(Semaphore::new(MAX_CONCURRENT_DUMPS)),
        }))
    }

    /// Responds to a request for a page of Envoy's admin interface; `None` for other pages, such as Ambit's own
    /// `/config_dump`.
    pub fn respond(&self, request: &Request) -> Option<Response> {
        if request.method() != Method::GET {
            return None;
        }
        let page = match request.uri().path() {
            "/config_dump" => match Selection::from_uri(request.uri()) {
                Ok(Selection::AmbitDump) => return None,
                Ok(Selection::Sections(sections)) => Page::ConfigDump(sections),
                Err(error) => return Some(text(400, format!("{error}\n"))),
            },
            "/clusters" => Page::Clusters,
            _ => return None,
        };
        let inner = self.0.clone();
        let Ok(permit) = inner.dumps.clone().try_acquire_owned() else {
            let busy = format!("{MAX_CONCURRENT_DUMPS} dumps are being written: try again later\n");
            return Some(text(503, busy));
        };
        Some(chunks::respond(move |writer| {
            let _permit = permit;
            inner.write(&page, writer)
        }))
    }
}

impl Inner {
    fn write(&self, page: &Page, writer: &mut chunks::ChunkWriter) -> serde_json::Result<()> {
        let source = DumpSource {
            waypoint: &self.waypoint,
            snapshot: &Snapshot::capture(&self.waypoint),
            node: Node {
                id: &self.node,
                version: &self.version,
            },
            certificates: &self.waypoint.dialer.certificates.dump(),
            now: Instant::now(),
        };
        match page {
            Page::ConfigDump(sections) => {
                serde_json::to_writer(writer, &ConfigDump::new(&source, sections))
            }
            Page::Clusters => serde_json::to_writer(writer, &ClusterStatuses(&source)),
        }
    }
}
