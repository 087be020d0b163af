//! Test PKI, scripted peers, builders. A dev-dependency only.
