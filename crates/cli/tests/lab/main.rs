//! The lab as a user has it: the real command, real namespaces, pods that run real programs.

mod life;
mod pods;
mod support;
