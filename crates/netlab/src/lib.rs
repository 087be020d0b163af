//! Network namespaces as nodes and pods, for the lab and for tests.
