//! L4 authorization: which policy decides a connection, and why. Pure.
