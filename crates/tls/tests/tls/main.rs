//! Handshakes, certificates and the CSR API, against the shared test PKI.

mod certificates;
mod chain;
mod crl;
mod csr;
mod handshake;
