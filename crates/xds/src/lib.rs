//! Delta xDS transport for the client state machine.
