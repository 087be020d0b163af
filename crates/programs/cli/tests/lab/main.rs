//! Tests of `ambit lab` as a user runs it: the real command, real namespaces, pods that run real programs.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod book;
mod lab_tool;
mod life;
mod lint;
mod manual;
mod mesh;
mod pods;
mod support;
mod waypoint;
