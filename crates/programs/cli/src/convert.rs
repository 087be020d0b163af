//! `ambit convert`: converts VirtualServices to equivalent HTTPRoutes. An object that cannot be converted completely is
//! left out, with each reason: a part of its rules would route requests differently.

use std::{path::PathBuf, process::ExitCode};

use ambit_k8s_api::{Kind, Object, ObjectKey};
use ambit_virtual_service::{Remark, http_routes};
use serde_json::Value;

use crate::{
    CliError, ErrorKind,
    files::text_of,
    output::{Format, print, print_line, printable},
};

/// Flags of `ambit convert`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConvertArgs {
    /// Manifests with VirtualServices: files, or - for standard input, such as `kubectl get virtualservices -A -o yaml`
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Domain of Kubernetes services
    #[arg(long, default_value = "cluster.local")]
    cluster_domain: String,
    /// Print JSON instead of YAML
    #[arg(long)]
    json: bool,
}

/// Prints the converted objects; the exit code is 1 if an object cannot be converted.
#[expect(clippy::print_stderr, reason = "standard output has the manifests")]
pub(crate) fn run(args: &ConvertArgs) -> Result<ExitCode, CliError> {
    let mut converted = Vec::new();
    let (mut found, mut left) = (0, 0);
    for path in &args.files {
        let read = ambit_manifests::values(path, &text_of(path)?);
        if let Some(problem) = read.problems.first() {
            return Err(CliError::new(ErrorKind::Usage, problem.to_string()));
        }
        for (object, origin) in read.objects {
            if object.get("kind").and_then(Value::as_str) != Some("VirtualService") {
                continue;
            }
            found += 1;
            let whole = Object::from_value(Kind::VirtualService, &object).map_err(|error| {
                let what = format!("{origin}: a VirtualService");
                CliError::new(ErrorKind::Usage, what).because(error)
            })?;
            let Object::VirtualService(whole) = whole else {
                continue;
            };
            let key = Object::VirtualService(whole.clone()).key();
            match http_routes(&whole, &args.cluster_domain) {
                Ok(conversion) => {
                    for note in conversion.notes {
                        report("note", &key, &note);
                    }
                    converted.extend(conversion.objects);
                }
                Err(reasons) => {
                    left += 1;
                    for reason in reasons {
                        report("left", &key, &reason);
                    }
                }
            }
        }
    }
    if found == 0 {
        return Err(CliError::new(
            ErrorKind::NotFound,
            "the manifests have no VirtualService",
        ));
    }
    for (number, object) in converted.iter().enumerate() {
        if number > 0 && !args.json {
            print_line("---")?;
        }
        let format = match args.json {
            true => Format::Json,
            false => Format::Yaml,
        };
        print(format, object, String::new)?;
    }
    eprintln!("{} of {found} VirtualServices are converted", found - left);
    Ok(ExitCode::from(u8::from(left > 0)))
}

#[expect(clippy::print_stderr, reason = "standard output has the manifests")]
fn report(what: &str, of: &ObjectKey, remark: &Remark) {
    eprintln!("{}", printable(&format!("{what}: {of}: {remark}")));
}

#[cfg(test)]
mod tests;
