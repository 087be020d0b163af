//! `ambit-cni`, run by the container runtime.

use std::{io, process::ExitCode};

fn main() -> ExitCode {
    let environment = ambit_cni::Environment::from_process();
    ambit_cni::run(
        &environment,
        io::stdin().lock(),
        io::stdout().lock(),
        io::stderr().lock(),
    )
}
