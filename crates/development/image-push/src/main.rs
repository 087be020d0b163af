//! `ambit-image-push ARCHIVE...`: pushes OCI archives to the registries that their names begin with, with the
//! credentials that `docker login` has stored, and prints the name of each with its digest. Called by `cargo xtask
//! images --push`.
#![forbid(unsafe_code)]

mod archive;
mod credentials;
mod push;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, ensure};

#[expect(clippy::print_stderr, reason = "progress and errors of a command")]
fn main() -> ExitCode {
    match run(std::env::args_os().skip(1).map(PathBuf::from).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn run(archives: Vec<PathBuf>) -> Result<()> {
    ensure!(!archives.is_empty(), "usage: ambit-image-push ARCHIVE...");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        // All archives are read before the first push, so that an unreadable one pushes nothing.
        let images: Vec<_> = archives
            .iter()
            .map(|path| archive::read(path))
            .collect::<Result<_>>()?;
        for image in &images {
            println!("{}", push::push(image).await?);
        }
        Ok(())
    })
}
