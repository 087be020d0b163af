//! The table of workloads and services, and where a connection goes. Pure.
