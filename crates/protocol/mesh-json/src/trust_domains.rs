//! File of accepted trust domains, which the control plane writes and proxies watch.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Trust domains whose workloads proxies accept in addition to the mesh's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustDomains {
    /// Aliases of the mesh's own trust domain. The mesh's roots verify certificates of an alias, unless `roots` has an
    /// entry for it.
    #[serde(default)]
    pub aliases: BTreeSet<String>,
    /// Root certificates (PEM) by trust domain. An entry for the mesh's own trust domain is added to the CA's roots.
    #[serde(default)]
    pub roots: BTreeMap<String, String>,
}

impl TrustDomains {
    /// Name of the file of trust domains.
    pub const FILE_NAME: &str = "trust-domains.json";

    /// Whether only the mesh's own trust domain is accepted, with the roots of its CA.
    pub fn is_empty(&self) -> bool {
        self.aliases.is_empty() && self.roots.is_empty()
    }
}
