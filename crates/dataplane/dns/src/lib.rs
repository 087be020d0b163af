//! DNS for captured pods: answers queries for names in the mesh, and forwards all other queries.
//!
//! [`DnsQuery::parse`], [`resolve_name`] and [`encode_response`] are pure; [`serve_datagrams`] and [`serve_connection`]
//! serve them on sockets inside the pod's network namespace. Queries that the mesh cannot answer are forwarded to the
//! pod's resolver unchanged, except for the query id.
#![forbid(unsafe_code)]

mod answer;
mod lookup;
mod question;
mod relay;
mod server;
mod settings;
mod tcp;
mod transport;
mod udp;
mod upstream;

pub use answer::encode_response;
pub use lookup::{AddressFamily, DnsClient, ResolvedName, resolve_name};
pub use question::{DnsQuery, QueryRejection};
pub use server::{DnsHost, MeshLookup, QueryOutcome, QueryReport, Server};
pub use settings::{DnsLimits, UpstreamSocketOptions, system_dns_servers};
pub use tcp::serve_connection;
pub use transport::Transport;
pub use udp::serve_datagrams;
pub use upstream::RelayError;
