//! Environment of the control plane: a Kubernetes cluster, or directories of manifests.

use std::{path::Path, sync::Arc, time::Duration};

use ambit_ca::{CaMaterial, CaSecret, TrustPublisher};
use ambit_caller_auth::{
    Authenticator, KeyFileAuthenticator, TokenReviewer, UnavailableAuthenticator,
};
use ambit_k8s_api::revisions;
use ambit_kube_kit::lease;
use ambit_manifests::ManifestDirs;
use ambit_rt::{Backoff, DrainWatcher, ErrorChain};
use anyhow::Context;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::sync::watch;

use crate::{args::Args, kubernetes::Informers, metrics::Metrics, source::Source};

/// Name of the Lease by which a revision's leader is elected; for other revisions than the default one, the revision is
/// appended.
const LEADER_LEASE: &str = "ambit-control-leader";
/// Name of the Lease by which the mesh's leader is elected, which writes objects that all revisions share. Only leaders
/// of revisions are candidates.
const MESH_LEASE: &str = "ambit-mesh-leader";
/// First and longest backoff while the Kubernetes API cannot be reached at the start.
const API_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Environment that the control plane's parts share.
#[derive(Debug)]
pub struct Environment {
    /// Source of objects.
    pub source: Source,
    /// Publisher of the CA that currently signs.
    pub publisher: TrustPublisher,
    /// Verifier of callers' tokens.
    pub authenticator: Arc<dyn Authenticator>,
    /// Kubernetes cluster; `None` if objects come from manifests.
    pub cluster: Option<Cluster>,
}

/// Kubernetes cluster in which this replica runs.
#[derive(Clone)]
pub struct Cluster {
    /// Client of the cluster's API.
    pub client: Client,
    /// Whether this replica is the leader of its revision.
    pub is_leader: watch::Receiver<bool>,
    /// Whether this replica is the leader of the whole mesh, and so writes objects that all revisions share.
    pub is_mesh_leader: watch::Receiver<bool>,
    /// Name of this replica.
    pub name: String,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Environment {
    /// Opens the environment for the arguments. Its tasks end with the drain.
    pub async fn open(
        args: &Args,
        metrics: &Arc<Metrics>,
        drain: &DrainWatcher,
    ) -> anyhow::Result<Self> {
        if args.manifests.is_empty() {
            Self::from_cluster(args, metrics, drain).await
        } else {
            Self::from_files(args, metrics, drain)
        }
    }

    fn from_files(
        args: &Args,
        metrics: &Arc<Metrics>,
        drain: &DrainWatcher,
    ) -> anyhow::Result<Self> {
        let dir = args.ca_dir.as_deref();
        let material = ambit_ca::open_or_create(dir, &args.trust_domain)?;
        let publisher = load_plugged_in_ca(dir, &material, metrics, drain)?;
        let authenticator: Arc<dyn Authenticator> = match &args.token_keys {
            Some(path) => Arc::new(KeyFileAuthenticator::open(path, &args.token_audience)?),
            None => {
                tracing::warn!("no --token-keys: every caller is refused");
                Arc::new(UnavailableAuthenticator)
            }
        };
        Ok(Self {
            source: Source::Manifests(ManifestDirs::open(args.manifests.clone())?),
            publisher,
            authenticator,
            cluster: None,
        })
    }

    async fn from_cluster(
        args: &Args,
        metrics: &Arc<Metrics>,
        drain: &DrainWatcher,
    ) -> anyhow::Result<Self> {
        let client =
            ambit_kube_kit::create_client(args.kubeconfig.as_deref(), "ambit-control").await?;
        let (sender, is_leader) = watch::channel(false);
        let (mesh_sender, is_mesh_leader) = watch::channel(false);
        let dir = args.ca_dir.as_deref();
        let found = match dir {
            Some(dir) => CaMaterial::read_dir(dir)?,
            None => None,
        };
        let publisher = match found {
            Some(material) => load_plugged_in_ca(dir, &material, metrics, drain)?,
            None => {
                let namespace = args.own_namespace();
                let secret = CaSecret::new(client.clone(), namespace, &args.trust_domain);
                let material = open_with_retries(&secret).await;
                let publisher =
                    TrustPublisher::new(material, &secret.location(), metrics.ca.clone())?;
                let follow = secret.watch_and_renew(
                    publisher.clone(),
                    is_mesh_leader.clone(),
                    drain.clone(),
                );
                ambit_rt::spawn("ca secret", follow);
                publisher
            }
        };
        let authenticator: Arc<dyn Authenticator> = match &args.token_keys {
            Some(path) => Arc::new(KeyFileAuthenticator::open(path, &args.token_audience)?),
            None => Arc::new(TokenReviewer::new(client.clone(), &args.token_audience)),
        };
        let name = replica_name(args);
        let api = Api::namespaced(client.clone(), args.own_namespace());
        let lease = format!("{LEADER_LEASE}{}", revisions::name_suffix(&args.revision));
        let mut stop = drain.clone();
        let work = drain.open_work();
        let (of_revision, identity) = (api.clone(), name.clone());
        ambit_rt::spawn("lease", async move {
            let stop = async move {
                stop.wait_until_started().await;
            };
            lease::run_election(of_revision, &lease, &identity, sender, stop).await;
            drop(work);
        });
        let (of_mesh, identity) = (api, name.clone());
        let elect = run_mesh_election(
            of_mesh,
            identity,
            is_leader.clone(),
            mesh_sender,
            drain.clone(),
        );
        ambit_rt::spawn("mesh lease", elect);
        Ok(Self {
            source: Source::Kubernetes(Informers::start(&client, args.image_pull_secrets, drain)),
            publisher,
            authenticator,
            cluster: Some(Cluster {
                client,
                is_leader,
                is_mesh_leader,
                name,
            }),
        })
    }
}

/// Participates in the election of the mesh's leader while this replica is the leader of its revision; until the drain.
async fn run_mesh_election(
    api: Api<Lease>,
    identity: String,
    mut is_leader: watch::Receiver<bool>,
    sender: watch::Sender<bool>,
    mut drain: DrainWatcher,
) {
    let work = drain.open_work();
    loop {
        tokio::select! {
            changed = is_leader.wait_for(|is_leader| *is_leader) => if changed.is_err() {
                break;
            },
            _ = drain.wait_until_started() => break,
        }
        let (mut lost, mut stop) = (is_leader.clone(), drain.clone());
        let end = async move {
            tokio::select! {
                // Fails only when the process ends.
                _ = lost.wait_for(|is_leader| !*is_leader) => {}
                _ = stop.wait_until_started() => {}
            }
        };
        lease::run_election(api.clone(), MESH_LEASE, &identity, sender.clone(), end).await;
    }
    drop(work);
}

/// Publishes the CA `material`, and follows the CA's files in `dir`, if there is such a directory.
fn load_plugged_in_ca(
    dir: Option<&Path>,
    material: &CaMaterial,
    metrics: &Arc<Metrics>,
    drain: &DrainWatcher,
) -> anyhow::Result<TrustPublisher> {
    let location = dir.map_or_else(|| "memory".to_owned(), |dir| dir.display().to_string());
    let publisher = TrustPublisher::new(material.clone(), &location, metrics.ca.clone())
        .context("the certificate authority")?;
    if let Some(dir) = dir {
        let follow = ambit_ca::follow_directory(dir.to_owned(), publisher.clone(), drain.clone());
        ambit_rt::spawn("ca directory", follow);
    }
    Ok(publisher)
}

/// Loads the CA from the Secret. Retries with backoff while the API server is unavailable, instead of exiting and being
/// restarted with growing delays.
async fn open_with_retries(secret: &CaSecret) -> CaMaterial {
    let mut backoff = Backoff::new(API_BACKOFF.0, API_BACKOFF.1, 0.2);
    loop {
        match secret.open_or_create().await {
            Ok(material) => return material,
            Err(error) => {
                let error = ErrorChain(&error);
                tracing::error!(%error, "there is no certificate authority yet; trying again");
            }
        }
        tokio::time::sleep(backoff.next_delay(rand::random())).await;
    }
}

/// Returns the pod's name; outside of a cluster, a unique name.
fn replica_name(args: &Args) -> String {
    let made = || format!("ambit-control-{:016x}", rand::random::<u64>());
    args.name.clone().unwrap_or_else(made)
}
