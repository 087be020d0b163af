//! `ambit convert`: VirtualServices as equivalent HTTPRoutes. An object that cannot be converted whole is left, with each
//! reason: half of its rules would route requests differently.

mod filters;
mod order;
mod route;
mod values;
mod virtual_service;

use std::{fmt, path::PathBuf, process::ExitCode};

use serde_json::Value;

use crate::{
    CliError, ErrorKind,
    files::text_of,
    output::{Format, print, printable, say},
};
use virtual_service::VirtualService;

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

/// Reason why an object is left, or a note on one that is converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remark {
    /// Path of the field in the spec.
    pub(crate) field: String,
    pub(crate) message: String,
}

impl Remark {
    fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spec.{}: {}", self.field, self.message)
    }
}

/// Objects that stand for a VirtualService.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Conversion {
    pub(crate) objects: Vec<Value>,
    /// Differences that its owner should know.
    pub(crate) notes: Vec<Remark>,
}

/// Converts a VirtualService without printing it, or gives every reason why it cannot be converted.
pub(crate) fn preview(object: &Value, cluster_domain: &str) -> Result<Conversion, Vec<Remark>> {
    match VirtualService::read(object) {
        Ok(whole) => route::convert(&whole, cluster_domain),
        Err(error) => Err(vec![Remark::new("", error.to_string())]),
    }
}

/// Prints the converted objects; fails if one is left.
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
            let whole = VirtualService::read(&object).map_err(|error| {
                let what = format!("{origin}: a VirtualService");
                CliError::new(ErrorKind::Usage, what).because(error)
            })?;
            match route::convert(&whole, &args.cluster_domain) {
                Ok(conversion) => {
                    for note in conversion.notes {
                        report("note", &whole, &note);
                    }
                    converted.extend(conversion.objects);
                }
                Err(reasons) => {
                    left += 1;
                    for reason in reasons {
                        report("left", &whole, &reason);
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
            say("---")?;
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
fn report(what: &str, of: &VirtualService, remark: &Remark) {
    eprintln!("{}", printable(&format!("{what}: {}: {remark}", of.name())));
}

#[cfg(test)]
mod tests;
