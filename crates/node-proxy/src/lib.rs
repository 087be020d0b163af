//! The node proxy: one proxy instance a pod, mTLS tunnels, L4 authorization.
