//! Releases of Kubernetes that clusters can run.

use serde::{Deserialize, Serialize};

/// Release of Kubernetes that a cluster runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Kubernetes {
    /// Kubernetes 1.32, its last patch release available.
    #[value(name = "1.32")]
    V1_32,
    /// Kubernetes 1.33, its last patch release available.
    #[value(name = "1.33")]
    V1_33,
    /// Kubernetes 1.34, its last patch release available.
    #[default]
    #[value(name = "1.34")]
    V1_34,
    /// Kubernetes 1.35, its last patch release available.
    #[value(name = "1.35")]
    V1_35,
}

impl Kubernetes {
    /// Returns the version, as the Go module is tagged.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::V1_32 => "v1.32.13",
            Self::V1_33 => "v1.33.13",
            Self::V1_34 => "v1.34.4",
            Self::V1_35 => "v1.35.4",
        }
    }

    /// Returns the minor version, for instance `34`.
    pub(crate) fn minor(self) -> &'static str {
        let mut parts = self.version().split('.');
        parts.nth(1).unwrap_or_default()
    }

    /// Returns the module file in `build/kube` with the release's dependencies; `None` for the
    /// default release.
    pub(crate) fn module_file(self) -> Option<String> {
        (self != Self::default()).then(|| format!("v1.{}.mod", self.minor()))
    }

    /// Returns the directory of programs in the cache; each release has its own.
    pub(crate) fn directory(self) -> String {
        match self.module_file() {
            None => "bin".to_owned(),
            Some(_) => format!("bin-1.{}", self.minor()),
        }
    }
}
