//! Renders the chart's templates to objects, as Helm does.

use std::sync::{Arc, OnceLock, Weak};

use gotmpl::{MissingKey, Template, tmap, to_value};
use serde_json::Value;

use crate::{chart, object};

mod functions;

/// Release that the chart is rendered for.
#[derive(Clone, Debug)]
pub struct Release {
    /// Name of the release.
    pub name: String,
    /// Namespace of the mesh.
    pub namespace: String,
    /// Name of the installer: `Helm` or `ambit`.
    pub service: String,
    /// Minor version of the cluster, as the API server reports it (`34`, `31+`).
    pub kube_minor_version: String,
}

impl Default for Release {
    fn default() -> Self {
        Self {
            name: "ambit".to_owned(),
            namespace: "istio-system".to_owned(),
            service: "ambit".to_owned(),
            kube_minor_version: "34".to_owned(),
        }
    }
}

/// Error of rendering the chart.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// A template cannot be rendered.
    #[error("the template {path} cannot be rendered")]
    Template {
        /// Path of the template.
        path: &'static str,
        /// Cause of the error.
        #[source]
        source: gotmpl::TemplateError,
    },
    /// The rendered template is not valid YAML.
    #[error("the template {path} renders invalid YAML: {cause}")]
    Yaml {
        /// Path of the template.
        path: &'static str,
        /// Cause of the error.
        cause: String,
    },
    /// A file of the embedded chart is invalid.
    #[error("the chart is damaged: {0}")]
    Chart(String),
}

/// Renders the objects of the chart, including Helm's hooks, in the order of applying. `values`
/// must be complete.
///
/// # Errors
///
/// When the values do not fit a template.
pub fn render_objects(release: &Release, values: &Value) -> Result<Vec<Value>, RenderError> {
    let engine = TemplateEngine::new()?;
    let data = template_data(release, values)?;
    let mut objects = Vec::new();
    for file in chart::TEMPLATES {
        if file.path.ends_with(".yaml") {
            objects.extend(parse_documents(
                file.path,
                &engine.render(file.path, &data)?,
            )?);
        }
    }
    objects.sort_by_cached_key(|object| object::install_rank(&object::kind(object)));
    Ok(objects)
}

/// Parses the CRDs of the chart.
///
/// # Errors
///
/// When the embedded chart is invalid.
pub fn render_crds() -> Result<Vec<Value>, RenderError> {
    let mut crds = Vec::new();
    for file in chart::CRDS {
        crds.extend(parse_documents(file.path, file.text)?);
    }
    Ok(crds)
}

/// Renders the notes that are printed after an installation.
///
/// # Errors
///
/// When the embedded chart is invalid.
pub fn render_notes(release: &Release, values: &Value) -> Result<String, RenderError> {
    TemplateEngine::new()?.render(chart::NOTES.path, &template_data(release, values)?)
}

/// Template engine with all templates of the chart, which may include each other.
struct TemplateEngine(Arc<OnceLock<Template>>);

impl TemplateEngine {
    fn new() -> Result<Self, RenderError> {
        let slot = Arc::new(OnceLock::new());
        let here: Weak<OnceLock<Template>> = Arc::downgrade(&slot);
        let mut template =
            functions::register(Template::new("chart"), here).missing_key(MissingKey::ZeroValue);
        for file in chart::TEMPLATES.iter().chain([&chart::NOTES]) {
            // Helper files only define named templates; the other files are templates under their
            // paths.
            let text = if file.path.ends_with(".tpl") {
                file.text.to_owned()
            } else {
                format!("{{{{ define {:?} }}}}{}{{{{ end }}}}", file.path, file.text)
            };
            template = template
                .parse(&text)
                .map_err(|source| RenderError::Template {
                    path: file.path,
                    source,
                })?;
        }
        slot.get_or_init(|| template);
        Ok(Self(slot))
    }

    fn render(&self, path: &'static str, data: &gotmpl::Value) -> Result<String, RenderError> {
        let template = self
            .0
            .get()
            .ok_or_else(|| RenderError::Chart("no templates".to_owned()))?;
        template
            .execute_template_to_string(path, data)
            .map_err(|source| RenderError::Template { path, source })
    }
}

fn template_data(release: &Release, values: &Value) -> Result<gotmpl::Value, RenderError> {
    let damaged = |error: &dyn std::fmt::Display| RenderError::Chart(error.to_string());
    let metadata = chart::metadata().map_err(|error| damaged(&error))?;
    Ok(tmap! {
        "Values" => to_value(values).map_err(|error| damaged(&error))?,
        "Release" => tmap! {
            "Name" => release.name.as_str(),
            "Namespace" => release.namespace.as_str(),
            "Service" => release.service.as_str(),
        },
        "Chart" => tmap! {
            "Name" => metadata.name.as_str(),
            "Version" => metadata.version.as_str(),
            "AppVersion" => metadata.app_version.as_str(),
        },
        "Files" => template_files(),
        "Capabilities" => tmap! {
            "KubeVersion" => tmap! { "Major" => "1", "Minor" => release.kube_minor_version.as_str() },
        },
    })
}

/// Returns the files that templates include, by their paths.
fn template_files() -> gotmpl::Value {
    let entries = chart::INCLUDED_FILES.iter();
    let entries = entries.map(|file| (file.path.into(), file.text.into()));
    gotmpl::Value::Map(Arc::new(entries.collect()))
}

fn parse_documents(path: &'static str, text: &str) -> Result<Vec<Value>, RenderError> {
    let all: Vec<Option<Value>> =
        serde_saphyr::from_multiple(text).map_err(|error| RenderError::Yaml {
            path,
            cause: error.to_string(),
        })?;
    Ok(all
        .into_iter()
        .flatten()
        .filter(|object| !object.is_null())
        .collect())
}

#[cfg(test)]
mod tests;
