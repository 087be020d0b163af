//! `ambit convert`: converts VirtualServices to equivalent HTTPRoutes. An object that cannot be converted completely is
//! left out, with each reason: a part of its rules would route requests differently.

use std::{path::PathBuf, process::ExitCode};

use ambit_k8s_api::{Kind, Object, ObjectKey};
use ambit_virtual_service::{FieldRemark, convert_to_http_routes};
use serde_json::Value;

use crate::{
    CliError, ErrorKind,
    files::read_text,
    output::{OutputFormat, escape_unprintable, print_formatted, print_line},
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
        let read = ambit_manifests::parse_values(path, &read_text(path)?);
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
                CliError::new(ErrorKind::Usage, what).with_source(error)
            })?;
            let Object::VirtualService(whole) = whole else {
                continue;
            };
            let key = Object::VirtualService(whole.clone()).key();
            match convert_to_http_routes(&whole, &args.cluster_domain) {
                Ok(conversion) => {
                    for note in conversion.notes {
                        print_remark("note", &key, &note);
                    }
                    converted.extend(conversion.objects);
                }
                Err(reasons) => {
                    left += 1;
                    for reason in reasons {
                        print_remark("left", &key, &reason);
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
            true => OutputFormat::Json,
            false => OutputFormat::Yaml,
        };
        print_formatted(format, object, String::new)?;
    }
    eprintln!("{} of {found} VirtualServices are converted", found - left);
    Ok(ExitCode::from(u8::from(left > 0)))
}

#[expect(clippy::print_stderr, reason = "standard output has the manifests")]
fn print_remark(label: &str, object: &ObjectKey, remark: &FieldRemark) {
    eprintln!(
        "{}",
        escape_unprintable(&format!("{label}: {object}: {remark}"))
    );
}

#[cfg(test)]
mod tests;
