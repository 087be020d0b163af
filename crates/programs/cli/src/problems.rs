//! `ambit problems`: lists problems of objects that the control plane found, each with a remedy.

use ambit_derive::Severity;
use clap::Args;
use hyper::Method;
use serde::{Deserialize, Serialize};

use crate::{
    CliError, ErrorKind,
    output::{self, OutputFormat, format_table},
    source::Source,
};

/// Path on the control plane's debug port that lists problems of objects.
pub(crate) const PROBLEMS_PATH: &str = "/debug/problems";

/// Flags of `ambit problems`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProblemsArgs {
    #[command(flatten)]
    source: Source,
    /// Only of objects in this namespace
    #[arg(short, long)]
    namespace: Option<String>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Response of the control plane to [`PROBLEMS_PATH`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ProblemsPage {
    /// Documents of the control plane's manifests that cannot be parsed, with file and line.
    manifests: Vec<String>,
    /// Kinds that the control plane cannot watch, or not completely, because of their CRDs.
    definitions: Vec<String>,
    objects: Vec<Problem>,
}

/// Problem of an object, a document or a kind, as the control plane reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Problem {
    /// `error` if the object is not used as written; `warning` if a part of it has no effect.
    pub(crate) severity: String,
    /// Object as `Kind namespace/name`; empty for problems of documents and kinds.
    pub(crate) object: String,
    /// Path of the field in the object.
    pub(crate) field: String,
    pub(crate) message: String,
    /// File and line of the object, if it comes from manifests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<String>,
}

/// Prints the problems that the control plane reports.
pub(crate) fn run(args: &ProblemsArgs) -> Result<(), CliError> {
    let mut source = args.source.clone();
    source.control |= source.is_unspecified();
    let mut problems = fetch_problems(&source)?;
    if let Some(namespace) = &args.namespace {
        problems.retain(|problem| problem.namespace() == Some(namespace));
    }
    output::print_formatted(args.output, &problems, || problems_table(&problems))
}

/// Fetches the problems that a control plane reports.
pub(crate) fn fetch_problems(source: &Source) -> Result<Vec<Problem>, CliError> {
    let page = source.request_ok(Method::GET, PROBLEMS_PATH)?;
    let page = serde_json::from_slice::<ProblemsPage>(&page);
    page.map(ProblemsPage::into_problems).map_err(|error| {
        let what = format!("the control plane's answer to {PROBLEMS_PATH} cannot be read");
        CliError::new(ErrorKind::Unreachable, what).with_source(error)
    })
}

impl ProblemsPage {
    /// Returns all problems of the response; those of documents and kinds become errors without an object.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        let whole = self.manifests.into_iter().chain(self.definitions);
        let whole = whole.map(|message| Problem {
            severity: "error".to_owned(),
            message,
            ..Problem::default()
        });
        whole.chain(self.objects).collect()
    }
}

impl From<ambit_derive::Problem> for Problem {
    fn from(found: ambit_derive::Problem) -> Self {
        let severity = match found.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        Self {
            severity: severity.to_owned(),
            object: found.object.to_string(),
            field: found.field,
            message: found.message,
            origin: found.origin,
        }
    }
}

impl Problem {
    /// Whether the severity is `error`: the object is not used as written.
    pub(crate) fn is_error(&self) -> bool {
        self.severity == "error"
    }

    /// Returns the namespace of the object; `None` for cluster-scoped objects, documents and kinds.
    fn namespace(&self) -> Option<&str> {
        let (_, name) = self.object.split_once(' ')?;
        Some(name.split_once('/')?.0)
    }

    /// Formats the problem on one line.
    pub(crate) fn format_line(&self) -> String {
        let parts = [
            self.origin.as_deref().unwrap_or_default(),
            &self.object,
            &self.field,
            &self.message,
        ];
        let parts: Vec<_> = parts
            .into_iter()
            .filter(|part| !part.is_empty() && *part != ".")
            .collect();
        parts.join(": ")
    }
}

pub(crate) fn problems_table(problems: &[Problem]) -> String {
    if problems.is_empty() {
        return "no problems".to_owned();
    }
    let row = |problem: &Problem| {
        vec![
            problem.severity.to_uppercase(),
            match problem.object.as_str() {
                "" => "-".to_owned(),
                object => object.to_owned(),
            },
            problem.field.clone(),
            problem.message.clone(),
        ]
    };
    let header = ["SEVERITY", "OBJECT", "FIELD", "MESSAGE"];
    format_table(&header, problems.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESPONSE: &str = r#"{
      "manifests": ["/m/a.yaml:3: is a networking.istio.io/v1 Sidecar, which nothing reads: it has no effect"],
      "objects": [
        {"severity": "warning", "object": "Gateway shop/wp", "field": "spec.gatewayClassName", "message": "there is no GatewayClass x"},
        {"severity": "error", "object": "Namespace other", "field": ".", "message": "m", "origin": "/m/b.yaml:1"}
      ]
    }"#;

    #[test]
    fn problems_are_listed_with_their_objects() {
        let page: ProblemsPage = serde_json::from_str(RESPONSE).unwrap();
        let problems = page.into_problems();
        insta::assert_snapshot!(problems_table(&problems), @r"
        SEVERITY  OBJECT           FIELD                  MESSAGE
        ERROR     -                                       /m/a.yaml:3: is a networking.istio.io/v1 Sidecar, which nothing reads: it has no effect
        WARNING   Gateway shop/wp  spec.gatewayClassName  there is no GatewayClass x
        ERROR     Namespace other  .                      m
        ");
        assert_eq!(problems[2].format_line(), "/m/b.yaml:1: Namespace other: m");
        let namespaces: Vec<_> = problems.iter().map(Problem::namespace).collect();
        assert_eq!(namespaces, [None, Some("shop"), None]);
        assert_eq!(problems_table(&[]), "no problems");
    }
}
