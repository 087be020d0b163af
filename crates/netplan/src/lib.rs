//! Redirection inside a pod's network namespace as a value: computed, rendered, diffed. Pure.
