//! Attacks on a mesh in the lab, and what they must not achieve. Each module tests one property, which its header
//! states.

mod admin_port;
mod amplification;
mod control_plane;
mod floods;
mod forged_frames;
mod hung_agent;
mod killed;
mod mass_deletion;
mod names;
mod node_processes;
mod objects;
mod pre_capture;
mod revoked;
mod service_attachments;
mod stalled_clients;
mod truncation;
mod trust_domains;
mod waypoint_calls;
mod waypoint_tunnels;
