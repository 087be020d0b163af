//! The whole mesh on one machine: real binaries, namespaces for nodes and pods.
