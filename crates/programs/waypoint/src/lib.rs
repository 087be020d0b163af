//! Process of a waypoint: its environment, its parts, and the order in which they start and stop. The proxy itself is
//! `ambit-waypoint-engine`.
#![forbid(unsafe_code)]

pub mod app;
pub mod command;
