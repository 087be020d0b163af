//! A directory of Kubernetes manifests as a source of objects, followed live.
