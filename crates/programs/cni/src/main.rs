//! Entry point of `ambit-cni`, which the container runtime runs.

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
