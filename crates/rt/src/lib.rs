//! What every long-lived Ambit process shares: runtimes, drain, signals, readiness, admin and metrics server, logging.
