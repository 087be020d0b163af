//! HTTP/2 beneath hyper: frames in the bytes of a connection.

pub(crate) mod frames;
pub(crate) mod joined_data;
