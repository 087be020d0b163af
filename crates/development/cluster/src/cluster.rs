//! Handle of a running cluster: its paths, clients and options.

use std::{fs, path::PathBuf};

use anyhow::Result;
use kube::Client;

use crate::{
    module_files::{CrdSource, GATEWAY_API},
    network::Network,
    options::{ClusterPaths, Options, Slot},
    process::Processes,
};

/// Running cluster, which this or another process has started.
#[derive(Debug)]
pub struct Cluster {
    paths: ClusterPaths,
    options: Options,
    network: Network,
    processes: Processes,
}

impl Cluster {
    /// Finds the cluster of a slot, if it exists.
    pub fn find(places: ClusterPaths, slot: Slot) -> Result<Option<Self>> {
        match fs::read(places.state.join("cluster.json")) {
            Ok(text) => Ok(Some(Self::new(
                places,
                slot,
                serde_json::from_slice(&text)?,
            ))),
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn new(places: ClusterPaths, slot: Slot, options: Options) -> Self {
        Self {
            network: Network::new(slot, &options),
            processes: Processes::new(&places.state),
            paths: places,
            options,
        }
    }

    /// Returns the YAML of the Gateway API's CRDs.
    pub fn gateway_api(&self) -> Result<String> {
        self.crds(&GATEWAY_API)
    }

    pub(crate) fn crds(&self, of: &CrdSource) -> Result<String> {
        Ok(fs::read_to_string(self.bin().join(of.manifest))?)
    }

    /// Returns the path of the cluster administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.pki().join("admin.conf")
    }

    /// Returns a command that runs the cluster's own version of `kubectl`, as cluster administrator.
    pub fn kubectl(&self) -> std::process::Command {
        let mut command = std::process::Command::new(self.bin().join("kube"));
        command
            .arg("kubectl")
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .arg("--cache-dir")
            .arg(self.paths.state.join("kubectl-cache"));
        command
    }

    /// Returns a client of the API server, as cluster administrator.
    pub async fn client(&self) -> Result<Client> {
        Ok(ambit_kube_kit::create_client(Some(&self.kubeconfig()), "ambit-cluster").await?)
    }

    /// Returns the options with which the cluster was started.
    pub fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn paths(&self) -> &ClusterPaths {
        &self.paths
    }

    pub(crate) fn network(&self) -> Network {
        self.network
    }

    pub(crate) fn processes(&self) -> &Processes {
        &self.processes
    }

    pub(crate) fn bin(&self) -> PathBuf {
        let directory = self.options.kubernetes.directory();
        self.paths.cache.join(directory)
    }

    pub(crate) fn pki(&self) -> PathBuf {
        self.paths.state.join("pki")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.paths.state.join("cp")
    }
}
