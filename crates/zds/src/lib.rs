//! ZDS state machines, agent side and proxy side. Pure.
