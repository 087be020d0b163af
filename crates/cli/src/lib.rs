//! The ambit command line.
