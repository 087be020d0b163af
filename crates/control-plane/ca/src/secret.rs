//! The mesh's own root, stored in a Secret of Istio's format. The first replica to start generates
//! the root, all replicas read it, the leader renews it.

use std::{collections::BTreeMap, time::Duration};

use ambit_issuer::AuthorityError;
use ambit_kube_kit::watch::{self as objects, ObjectWatch, WatchEvent};
use ambit_rt::{DrainWatcher, ErrorChain};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, Client, api::PostParams, core::ObjectMeta};

use crate::{
    material::{CRL_FILE, CaMaterial, ROOT_TTL},
    trust::TrustPublisher,
};

/// Name of the Secret, as in Istio.
const SECRET_NAME: &str = "istio-ca-secret";
const SECRET_TYPE: &str = "istio.io/ca-root";
/// Interval at which the leader checks whether the root is due for renewal.
const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// Error of loading or creating the Secret of the root.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Call to the API server for the Secret that failed.
    #[error("cannot {verb} the secret {location}")]
    Api {
        /// Verb of the call.
        verb: &'static str,
        /// Namespace and name of the Secret.
        location: String,
        /// Cause of the error.
        #[source]
        source: Box<kube::Error>,
    },
    /// Secret without a usable value under a key.
    #[error(
        "the secret {location} has no usable {key}; mend it, or delete it to have a new root made"
    )]
    InvalidContent {
        /// Namespace and name of the Secret.
        location: String,
        /// Key that is missing or unusable.
        key: &'static str,
    },
    /// Failure to generate a root.
    #[error("cannot make a root")]
    CreateRoot(#[source] AuthorityError),
}

/// Secret that stores the CA's root certificate and key.
#[derive(Clone, Debug)]
pub struct CaSecret {
    api: Api<Secret>,
    namespace: String,
    trust_domain: String,
}

impl CaSecret {
    /// Creates the accessor of the Secret in `namespace`; does not read it.
    pub fn new(client: Client, namespace: &str, trust_domain: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            trust_domain: trust_domain.to_owned(),
        }
    }

    /// Returns namespace and name of the Secret, for messages.
    pub fn location(&self) -> String {
        format!("{}/{SECRET_NAME}", self.namespace)
    }

    /// Reads the root from the Secret, or generates a root and creates the Secret. If several replicas create the
    /// Secret at once, one of them succeeds, and all use its root.
    pub async fn open_or_create(&self) -> Result<CaMaterial, SecretError> {
        loop {
            let found = self.api.get_opt(SECRET_NAME).await;
            if let Some(secret) = found.map_err(|source| self.api_error("read", source))? {
                return self.material(&secret);
            }
            let material =
                CaMaterial::new_root(&self.trust_domain).map_err(SecretError::CreateRoot)?;
            match self.create(&material).await {
                Ok(()) => {
                    tracing::info!(secret = self.location(), "made a new root");
                    return Ok(material);
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(source) => return Err(self.api_error("create", source)),
            }
        }
    }

    /// Follows the Secret until the drain. If the Secret is deleted, the leader recreates it with the current root, so
    /// that issued certificates stay valid.
    pub async fn watch_and_renew(
        self,
        publisher: TrustPublisher,
        mut leadership: tokio::sync::watch::Receiver<bool>,
        mut drain: DrainWatcher,
    ) {
        let config = objects::watcher_config().fields(&format!("metadata.name={SECRET_NAME}"));
        let mut watch = ObjectWatch::new("Secret", self.api.clone(), config, |secret: &Secret| {
            Some(secret.clone())
        });
        // The existence of the Secret is unknown until a listing is complete.
        let mut there = None;
        let mut look = tokio::time::interval(RENEWAL_CHECK_INTERVAL);
        loop {
            tokio::select! {
                event = watch.next() => match event {
                    WatchEvent::ListStarted => there = None,
                    WatchEvent::Object(_, secret) => {
                        there = Some(true);
                        self.apply_secret(&secret, &publisher);
                    }
                    WatchEvent::Removed(_) => there = Some(false),
                    WatchEvent::ListCompleted => there = there.or(Some(false)),
                    WatchEvent::Unavailable(_) => {}
                },
                Ok(()) = leadership.changed() => {}
                _ = look.tick() => {}
                _ = drain.wait_until_started() => return,
            }
            let is_leader = *leadership.borrow_and_update();
            if let Some(there) = there.filter(|_| is_leader) {
                self.reconcile_as_leader(&publisher, there).await;
            }
        }
    }

    fn apply_secret(&self, secret: &Secret, publisher: &TrustPublisher) {
        let location = self.location();
        let taken = self
            .material(secret)
            .map_err(|error| ErrorChain(&error).to_string())
            .and_then(|material| {
                publisher
                    .replace(&material, &location)
                    .map_err(|error| ErrorChain(&error).to_string())
            });
        if let Err(error) = taken {
            tracing::error!(
                error,
                "the certificate authority is not renewed; the present one stays in force"
            );
        }
    }

    /// Recreates the Secret if it was deleted, and renews the root before it expires. Only the leader calls this.
    async fn reconcile_as_leader(&self, publisher: &TrustPublisher, exists: bool) {
        let trust = publisher.current();
        if !exists {
            match self.create(&trust.material).await {
                Ok(()) => {
                    tracing::warn!(
                        secret = self.location(),
                        "the secret was gone; wrote it again"
                    );
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => {
                    tracing::warn!(secret = self.location(), %error, "cannot write the secret again");
                }
            }
        }
        let renewed = match trust
            .authority
            .renew_root_if_due(ROOT_TTL, std::time::SystemTime::now())
        {
            Ok(Some(renewed)) => renewed,
            Ok(None) => return,
            Err(error) => {
                let error = ErrorChain(&error);
                tracing::error!(%error, "the root nears its end and cannot be renewed");
                return;
            }
        };
        let material = CaMaterial {
            crl: trust.material.crl.clone(),
            ..CaMaterial::from_root(&renewed)
        };
        match self.replace(&material).await {
            Ok(()) => tracing::info!(secret = self.location(), "renewed the root"),
            Err(error) => {
                tracing::warn!(%error, "cannot keep the renewed root; trying again later")
            }
        }
    }

    async fn create(&self, material: &CaMaterial) -> Result<(), kube::Error> {
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(SECRET_NAME.to_owned()),
                ..ObjectMeta::default()
            },
            type_: Some(SECRET_TYPE.to_owned()),
            data: Some(secret_data(material)),
            ..Secret::default()
        };
        self.api.create(&PostParams::default(), &secret).await?;
        Ok(())
    }

    /// Replaces the Secret's contents, unless another writer has changed the Secret meanwhile.
    async fn replace(&self, material: &CaMaterial) -> Result<(), kube::Error> {
        let mut secret = self.api.get(SECRET_NAME).await?;
        secret.data = Some(secret_data(material));
        self.api
            .replace(SECRET_NAME, &PostParams::default(), &secret)
            .await?;
        Ok(())
    }

    fn material(&self, secret: &Secret) -> Result<CaMaterial, SecretError> {
        let text = |key: &'static str| {
            secret
                .data
                .as_ref()
                .and_then(|data| data.get(key))
                .and_then(|value| String::from_utf8(value.0.clone()).ok())
                .filter(|text| !text.trim().is_empty())
        };
        let needed = |key| {
            text(key).ok_or_else(|| SecretError::InvalidContent {
                location: self.location(),
                key,
            })
        };
        let cert = needed("ca-cert.pem")?;
        Ok(CaMaterial {
            key: needed("ca-key.pem")?,
            // Early versions of Istio left the root out: the certificate is the root.
            roots: text("root-cert.pem").unwrap_or_else(|| cert.clone()),
            chain: text("cert-chain.pem").unwrap_or_default(),
            crl: text(CRL_FILE),
            cert,
        })
    }

    fn api_error(&self, verb: &'static str, source: kube::Error) -> SecretError {
        SecretError::Api {
            verb,
            location: self.location(),
            source: Box::new(source),
        }
    }
}

fn secret_data(material: &CaMaterial) -> BTreeMap<String, ByteString> {
    let entries = [
        ("ca-cert.pem", &material.cert),
        ("ca-key.pem", &material.key),
        ("cert-chain.pem", &material.chain),
        ("root-cert.pem", &material.roots),
        ("key.pem", &String::new()),
    ];
    let crl = material.crl.as_ref().map(|crl| (CRL_FILE, crl));
    entries
        .into_iter()
        .chain(crl)
        .map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes())))
        .collect()
}
