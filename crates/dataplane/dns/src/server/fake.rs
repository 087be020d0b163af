//! Fake host of the DNS server for tests.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// Host that resolves only the name `web`, and can lack the initial mesh state.
#[derive(Debug, Default)]
pub(crate) struct FakeDnsHost {
    pub(crate) has_no_mesh_state: AtomicBool,
    pub(crate) reports: AtomicUsize,
}

impl DnsHost for FakeDnsHost {
    fn resolve_in_mesh(&self, name: &str, _family: AddressFamily) -> MeshLookup {
        if self.has_no_mesh_state.load(Ordering::Relaxed) {
            return MeshLookup::MeshStateMissing;
        }
        if name != "web" {
            return MeshLookup::NotFound;
        }
        MeshLookup::Found(ResolvedName {
            host: "web".into(),
            alias: None,
            addresses: vec![[10, 0, 0, 1].into()],
        })
    }

    async fn wait_for_mesh_state(&self) -> bool {
        !self.has_no_mesh_state.load(Ordering::Relaxed)
    }

    fn is_serving(&self) -> bool {
        true
    }

    async fn wait_until_serving(&self) {}

    fn report(&self, _report: &QueryReport<'_>) {
        self.reports.fetch_add(1, Ordering::Relaxed);
    }
}

/// Builds a DNS server with a fake host and no upstream servers.
pub(crate) fn fake_server(limits: DnsLimits) -> std::sync::Arc<Server<FakeDnsHost>> {
    std::sync::Arc::new(Server::new(
        FakeDnsHost::default(),
        UpstreamSocketOptions::default(),
        limits,
    ))
}

/// Encodes a DNS query for the `A` record of `name`.
pub(crate) fn encode_query(name: &str) -> Vec<u8> {
    use hickory_proto::{
        op::{Message, Query},
        rr::{Name, RecordType},
    };
    let mut message = Message::query();
    let name = Name::from_ascii(format!("{name}.")).unwrap();
    message.add_query(Query::query(name, RecordType::A));
    message.to_vec().unwrap()
}
