//! Entry point of `ambit`, the command line.

fn main() -> std::process::ExitCode {
    ambit_cli::main()
}
