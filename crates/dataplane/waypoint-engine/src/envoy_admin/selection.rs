//! Parses the query parameters of `/config_dump`, which select parts of the dump as in Envoy's admin interface.

use ambit_rt::http::query_parameters;
use http::Uri;

/// Section of a configuration dump: one message of `envoy.admin.v3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    /// Node id and control-plane address: `BootstrapConfigDump`.
    Bootstrap,
    /// Clusters to which routes forward: `ClustersConfigDump`.
    Clusters,
    /// Endpoints of the clusters: `EndpointsConfigDump`.
    Endpoints,
    /// Ports, and filter chains matched by the called address: `ListenersConfigDump`.
    Listeners,
    /// HTTP route configurations: `RoutesConfigDump`.
    Routes,
    /// Certificates and the trust store: `SecretsConfigDump`.
    Secrets,
    /// WebAssembly plugins: `EcdsConfigDump`.
    Extensions,
}

impl Section {
    /// All sections, in the order in which they appear in a dump.
    pub(super) const ALL: [Self; 7] = [
        Self::Bootstrap,
        Self::Clusters,
        Self::Endpoints,
        Self::Listeners,
        Self::Routes,
        Self::Secrets,
        Self::Extensions,
    ];

    /// Returns the field names of the section's message, which `mask` may select.
    const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Bootstrap => &["bootstrap"],
            Self::Clusters => &[
                "static_clusters",
                "dynamic_active_clusters",
                "dynamic_warming_clusters",
            ],
            Self::Endpoints => &["static_endpoint_configs", "dynamic_endpoint_configs"],
            Self::Listeners => &["static_listeners", "dynamic_listeners"],
            Self::Routes => &["static_route_configs", "dynamic_route_configs"],
            Self::Secrets => &[
                "static_secrets",
                "dynamic_active_secrets",
                "dynamic_warming_secrets",
            ],
            Self::Extensions => &["ecds_filters"],
        }
    }
}

/// Format and sections of the dump that a request selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    /// Ambit's own dump, for requests without Envoy's query parameters.
    AmbitDump,
    /// Sections of a dump in Envoy's format.
    Sections(Vec<Section>),
}

/// Error of an unsupported query parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SelectionError {
    #[error("a waypoint's dump has no field {0:?}; give mask the fields that istioctl gives it")]
    Field(String),
    #[error("the parameter {0} is not supported; select parts of the dump by mask")]
    Parameter(&'static str),
}

impl Selection {
    /// Parses the query parameters of a request to `/config_dump`.
    pub(super) fn from_uri(uri: &Uri) -> Result<Self, SelectionError> {
        let (mut masked, mut includes_endpoints, mut is_envoys) = (Vec::new(), false, false);
        for (name, value) in query_parameters(uri) {
            match name.as_str() {
                "mask" => {
                    is_envoys = true;
                    for field in value.split(',').filter(|field| !field.is_empty()) {
                        masked.push(parse_section(field)?);
                    }
                }
                // Envoy checks only that the parameter is present.
                "include_eds" => (is_envoys, includes_endpoints) = (true, true),
                "resource" => return Err(SelectionError::Parameter("resource")),
                "name_regex" => return Err(SelectionError::Parameter("name_regex")),
                _ => {}
            }
        }
        if !is_envoys {
            return Ok(Self::AmbitDump);
        }
        let is_selected = |section: &Section| {
            let is_default = *section != Section::Endpoints || includes_endpoints;
            masked.contains(section) || masked.is_empty() && is_default
        };
        let all = Section::ALL.into_iter();
        Ok(Self::Sections(all.filter(is_selected).collect()))
    }
}

fn parse_section(field: &str) -> Result<Section, SelectionError> {
    let mut all = Section::ALL.into_iter();
    let section = all.find(|section| section.fields().contains(&field));
    section.ok_or_else(|| SelectionError::Field(field.chars().take(100).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(query: &str) -> Result<Selection, SelectionError> {
        let uri = format!("/config_dump{query}");
        Selection::from_uri(&uri.parse().unwrap())
    }

    #[test]
    fn requests_without_parameters_select_ambits_dump() {
        assert_eq!(selection(""), Ok(Selection::AmbitDump));
        assert_eq!(selection("?pretty"), Ok(Selection::AmbitDump));
    }

    #[test]
    fn requests_of_istioctl_select_sections() {
        let sections = |query| match selection(query) {
            Ok(Selection::Sections(sections)) => sections,
            other => panic!("{query}: {other:?}"),
        };
        for (query, expected) in [
            (
                "?mask=dynamic_active_clusters,dynamic_warming_clusters,static_clusters",
                Section::Clusters,
            ),
            (
                "?mask=dynamic_listeners,static_listeners",
                Section::Listeners,
            ),
            (
                "?mask=dynamic_route_configs,static_route_configs",
                Section::Routes,
            ),
            (
                "?mask=dynamic_active_secrets,dynamic_warming_secrets",
                Section::Secrets,
            ),
            ("?mask=bootstrap", Section::Bootstrap),
        ] {
            assert_eq!(sections(query), [expected], "{query}");
        }
        assert_eq!(sections("?include_eds=true"), Section::ALL);
        assert!(!sections("?mask").contains(&Section::Endpoints));
    }

    #[test]
    fn unsupported_parameters_are_refused_by_name() {
        let error = selection("?mask=nonsense").unwrap_err();
        assert!(error.to_string().contains("\"nonsense\""), "{error}");
        let error = selection("?resource=dynamic_listeners").unwrap_err();
        assert!(error.to_string().contains("resource"), "{error}");
    }
}
