//! Support for tests: waiting for a condition, a PKI, fake CAs, scripted HTTP/2 peers, builders of mesh objects,
//! commands of documents, real Helm and real SPIRE. This crate is only ever a dev-dependency.
//!
//! Functions panic with a clear message when a test is set up incorrectly.
#![forbid(unsafe_code)]
#![expect(
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "only tests use this crate"
)]

mod api_server;
mod backend;
pub mod build;
mod csr_api;
mod csr_server;
pub mod documents;
mod fake_ca;
pub mod h2_peer;
mod helm;
pub mod http;
mod istio_csr;
mod otlp_collector;
mod pki;
pub mod roles;
mod scripted_server;
mod spiffe_agent;
mod spire;
mod wait;
mod workspace;

pub use api_server::{ApiRequest, ApiServer};
pub use backend::redirection_backend;
pub use csr_server::{CsrResponse, CsrServer, ReceivedCsr};
pub use fake_ca::FakeCa;
pub use helm::helm_command;
pub use istio_csr::{ISTIO_CSR_NAME, IstioCsr};
pub use otlp_collector::{OTLP_VARIABLES, OtlpCollector};
pub use pki::{
    Pki, accept_trust_domains, csr_response_from_files, is_accepted, revoke_with_ca_files,
};
pub use scripted_server::ScriptedServer;
pub use spiffe_agent::{SpiffeAgent, SpiffeEntries, SpiffeSvid};
pub use spire::Spire;
pub use wait::{advance_time, wait_until, wait_until_blocking, wait_until_some, wait_until_within};
pub use workspace::{built_binary, target_directory};
