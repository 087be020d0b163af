//! Tests of waypoints under faults, in routing loops, and with every kind of traffic. Each module tests one property,
//! which its header states.

mod authorizers;
mod collectors;
mod dashboards;
mod envoy_admin;
mod explained;
mod faults;
mod flows;
mod foreign;
mod introduction;
mod kinds;
mod limits;
mod open_connections;
mod overlays;
mod pod_termination;
mod progress;
mod protocols;
mod proxy_protocol;
mod rehearsal;
mod rehearsal_of_cluster;
mod request_explained;
mod rollout;
mod routed_policies;
mod routing_loops;
mod sessions;
mod telemetry;
mod tls_routes;
mod virtual_services;
mod waypoint_records;
mod websocket;
