//! The control plane: derives the mesh from Kubernetes objects, serves delta xDS, is the CA.
