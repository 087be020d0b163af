//! Redirection backend of tests with real programs.

/// Returns the backend that all tests shall use which name none, such as `bpf`: the value of `AMBIT_TEST_BACKEND`.
pub fn redirection_backend() -> Option<String> {
    std::env::var("AMBIT_TEST_BACKEND").ok()
}
