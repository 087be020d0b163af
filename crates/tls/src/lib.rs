//! Mesh identity in TLS: certificates, the SPIFFE verifier, CSR and CA client.
