//! The control plane: derives the mesh from Kubernetes objects, serves delta xDS, is the CA.
#![forbid(unsafe_code)]

pub mod derive;
pub mod problems;
