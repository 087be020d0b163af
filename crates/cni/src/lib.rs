//! The CNI plugin: holds a pod's start until its redirection stands.
