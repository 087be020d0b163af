//! Programs that a test runs on the host.

use std::process::Child;

/// Process that ends with the test.
#[derive(Debug)]
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
