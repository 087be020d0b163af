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
struct Remark {
    /// Path of the field in the spec.
    field: String,
    message: String,
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
struct Conversion {
    objects: Vec<Value>,
    /// Differences that its owner should know.
    notes: Vec<Remark>,
}

/// Prints the converted objects; fails if one is left.
#[expect(clippy::print_stderr, reason = "standard output has the manifests")]
pub(crate) fn run(args: &ConvertArgs) -> Result<ExitCode, CliError> {
    let mut converted = Vec::new();
    let (mut found, mut left) = (0, 0);
    for path in &args.files {
        let name = path.display().to_string();
        for object in documents(&name, &text_of(path)?)? {
            if object.get("kind").and_then(Value::as_str) != Some("VirtualService") {
                continue;
            }
            found += 1;
            let whole = VirtualService::read(&object).map_err(|error| {
                CliError::new(ErrorKind::Usage, format!("{name}: a VirtualService")).because(error)
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

/// The objects of a text, those of lists one by one.
fn documents(name: &str, text: &str) -> Result<Vec<Value>, CliError> {
    let mut all = Vec::new();
    // One by one: the parser's limits are for a document, and a cluster may have thousands of objects.
    for (line, document) in ambit_manifests::documents(text) {
        let parsed: Option<Value> = serde_saphyr::from_str(document).map_err(|error| {
            let what = format!("{name}: the document of line {line} is no YAML");
            CliError::new(ErrorKind::Usage, what).because(error.to_string())
        })?;
        let Some(mut document) = parsed else { continue };
        match document.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => all.extend(items),
            _ => all.push(document),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
