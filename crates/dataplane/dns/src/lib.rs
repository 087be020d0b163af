//! DNS for captured pods: answers queries for names in the mesh, and forwards all others.
//!
//! [`Question::parse`], [`look_up`] and [`encode`] are pure; [`serve_datagrams`] and [`serve_connection`] are the
//! loops around them, on sockets inside the pod's namespace. Queries that the mesh cannot answer are forwarded, byte
//! for byte, to the pod's resolver.
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

pub use answer::encode;
pub use lookup::{Client, Family, Found, look_up};
pub use question::{Question, Unanswerable};
pub use server::{Host, Known, Outcome, Report, Server};
pub use settings::{Egress, Limits, system_servers};
pub use tcp::serve_connection;
pub use transport::Transport;
pub use udp::serve_datagrams;
pub use upstream::RelayError;
