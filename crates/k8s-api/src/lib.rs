//! Kubernetes and Istio API types, labels and annotations as Ambit reads them.
