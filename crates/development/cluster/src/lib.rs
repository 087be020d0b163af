//! A real Kubernetes on one machine, for tests and development: etcd, API server, controllers, scheduler, and nodes
//! with containerd, kubelet and kube-proxy. Each node has its own namespaces, and its own `/etc`, `/opt`, `/run` and
//! `/var`.
//!
//! Everything is built from Go modules, Debian packages and images that this crate writes. A running cluster can be
//! reached from this machine: the API server, pods and Services have routes.
#![forbid(unsafe_code)]

mod cgroups;
mod cluster;
mod command;
pub mod command_line;
mod control_plane;
mod images;
mod lifecycle;
mod module_files;
mod network;
mod network_policies;
mod node_config;
mod nodes;
pub mod objects;
mod options;
mod pki;
mod primary_cni;
mod process;
mod programs;
mod releases;

pub use cluster::Cluster;
pub use lifecycle::SlotLock;
pub use network_policies::NetworkPolicies;
pub use nodes::{Node, NodeBoot};
pub use options::{ClusterPaths, IpFamily, Layout, Options, PrimaryCni, Slot};
pub use primary_cni::CNI_FILE;
pub use releases::Kubernetes;
