//! The file of trust domains: the control plane writes it, proxies follow it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Trust domains whose workloads proxies accept besides those of the mesh's own one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustDomains {
    /// Names of the mesh's own trust domain, if it has several. The mesh's roots verify their certificates, unless
    /// `roots` has others for one of them.
    #[serde(default)]
    pub aliases: BTreeSet<String>,
    /// Root certificates (PEM) by trust domain. Those of the mesh's own one are used beside the CA's.
    #[serde(default)]
    pub roots: BTreeMap<String, String>,
}

impl TrustDomains {
    /// Name of the file.
    pub const FILE: &str = "trust-domains.json";

    /// Whether no trust domain is accepted but the mesh's own one, under the roots of its CA.
    pub fn is_empty(&self) -> bool {
        self.aliases.is_empty() && self.roots.is_empty()
    }
}
