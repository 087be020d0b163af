//! Fake proxy that embeds the DNS server in tests.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// Fake host that resolves the name `web`, optionally without the initial mesh state.
#[derive(Debug, Default)]
pub(crate) struct Fake {
    pub(crate) blind: AtomicBool,
    pub(crate) reports: AtomicUsize,
}

impl Host for Fake {
    fn look_up(&self, name: &str, _family: Family) -> Known {
        if self.blind.load(Ordering::Relaxed) {
            return Known::NotYet;
        }
        if name != "web" {
            return Known::Unknown;
        }
        Known::Found(Found {
            host: "web".into(),
            alias: None,
            addresses: vec![[10, 0, 0, 1].into()],
        })
    }

    async fn mesh_known(&self) -> bool {
        !self.blind.load(Ordering::Relaxed)
    }

    fn has_turn(&self) -> bool {
        true
    }

    async fn turn(&self) {}

    fn report(&self, _report: &Report<'_>) {
        self.reports.fetch_add(1, Ordering::Relaxed);
    }
}

/// Builds a server without upstream servers.
pub(crate) fn server(limits: Limits) -> std::sync::Arc<Server<Fake>> {
    std::sync::Arc::new(Server::new(Fake::default(), Egress::default(), limits))
}

/// Encodes a query for the address of `name`.
pub(crate) fn question(name: &str) -> Vec<u8> {
    use hickory_proto::{
        op::{Message, Query},
        rr::{Name, RecordType},
    };
    let mut message = Message::query();
    let name = Name::from_ascii(format!("{name}.")).unwrap();
    message.add_query(Query::query(name, RecordType::A));
    message.to_vec().unwrap()
}
