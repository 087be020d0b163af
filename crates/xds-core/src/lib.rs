//! Delta xDS state machines, client side and server side. Pure.
