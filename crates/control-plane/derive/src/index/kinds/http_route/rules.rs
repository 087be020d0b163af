//! The rules of a route. What is not supported makes its rule unusable, and requests that it matches are
//! answered with an error; a part that decides which requests those are makes it match as if it were not
//! there.

use std::collections::BTreeMap;

use ambit_k8s_api::{
    Kind, ObjectKey, Service,
    gateway::{self, HttpNamedMatch},
};
use ambit_model::{
    ArcStr, HttpBackend, HttpPathMatch, HttpRouteMatch, HttpRouteRule, HttpValueMatch,
    NamespacedHostname,
};
use serde_json::Value;

use super::service_kind;
use crate::{
    index::Index,
    problem::{FieldError, Note},
};

/// One rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RuleInput {
    matches: Vec<HttpRouteMatch>,
    backends: Vec<BackendInput>,
    unsupported: Option<ArcStr>,
}

#[derive(Clone, Debug, PartialEq)]
struct BackendInput {
    /// The object; an error if it cannot be used.
    target: Result<ObjectKey, ArcStr>,
    port: u16,
    weight: u32,
}

impl RuleInput {
    /// The only rule of a route that cannot be used.
    pub(super) fn unusable() -> Self {
        Self {
            matches: Vec::new(),
            backends: Vec::new(),
            unsupported: Some(arcstr::literal!(
                "the route cannot be used as it is written"
            )),
        }
    }

    /// The objects that requests go to.
    pub(super) fn targets(&self) -> impl Iterator<Item = &ObjectKey> {
        self.backends
            .iter()
            .filter_map(|backend| backend.target.as_ref().ok())
    }

    /// What in it is not supported.
    pub(super) fn unsupported(&self) -> Option<&str> {
        self.unsupported.as_deref()
    }

    /// Backends that requests cannot go to, with the reason for a condition.
    pub(super) fn errors(&self, index: &Index) -> Vec<(&'static str, ArcStr)> {
        let error = |backend: &BackendInput| match &backend.target {
            Err(why) => Some(("InvalidKind", why.clone())),
            Ok(target) => {
                let why = find(index, target, backend.port).err()?;
                Some(("BackendNotFound", why))
            }
        };
        self.backends.iter().filter_map(error).collect()
    }

    /// With its backends as they are now.
    pub(super) fn resolved(&self, index: &Index) -> HttpRouteRule {
        let backend = |from: &BackendInput| HttpBackend {
            service: from
                .target
                .clone()
                .and_then(|target| find(index, &target, from.port)),
            port: from.port,
            weight: from.weight,
        };
        HttpRouteRule {
            matches: self.matches.clone(),
            backends: self.backends.iter().map(backend).collect(),
            unsupported: self.unsupported.clone(),
        }
    }
}

/// The service that a backend is.
fn find(index: &Index, target: &ObjectKey, port: u16) -> Result<NamespacedHostname, ArcStr> {
    let service = index.get::<Service>(target);
    let service = service.ok_or_else(|| arcstr::format!("there is no {target}"))?;
    if !service
        .ports
        .iter()
        .any(|one| one.is_tcp && one.port == port)
    {
        return Err(arcstr::format!("{target} has no port {port}"));
    }
    let host = service.hostname(&index.config.cluster_domain);
    Ok(NamespacedHostname::new(target.namespace.clone(), host))
}

/// A number as a port.
pub(super) fn port(number: i32) -> Result<u16, String> {
    u16::try_from(number)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("{number} is not a port, 1 to 65535"))
}

/// The rules of a route; what is not supported is noted.
pub(super) fn read(
    spec: &gateway::HttpRouteSpec,
    namespace: &str,
    notes: &mut Vec<Note>,
) -> Result<Vec<RuleInput>, FieldError> {
    let mut reader = Reader {
        notes,
        unsupported: None,
    };
    reader.unknown("spec", &spec.other);
    let of_all = reader.unsupported.take();
    // As the API server has it: one rule that matches everything and leads nowhere.
    let default = [gateway::HttpRouteRule::default()];
    let rules = if spec.rules.is_empty() {
        &default
    } else {
        spec.rules.as_slice()
    };
    let mut read = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        reader.unsupported.clone_from(&of_all);
        read.push(reader.rule(rule, namespace, &format!("spec.rules[{index}]"))?);
    }
    Ok(read)
}

/// Reads one rule.
struct Reader<'a> {
    notes: &'a mut Vec<Note>,
    /// The first thing in the rule that is not supported.
    unsupported: Option<ArcStr>,
}

impl Reader<'_> {
    fn unsupported(&mut self, field: String, what: &str) {
        let reason = || arcstr::format!("{field}: {what}");
        self.unsupported.get_or_insert_with(reason);
        let message = format!("{what}: requests that the rule matches are answered with 500");
        self.notes.push(Note::new(field, message));
    }

    fn unknown(&mut self, at: &str, other: &BTreeMap<String, Value>) {
        for name in other.keys() {
            self.unsupported(format!("{at}.{name}"), "is not supported");
        }
    }

    fn rule(
        &mut self,
        rule: &gateway::HttpRouteRule,
        namespace: &str,
        at: &str,
    ) -> Result<RuleInput, FieldError> {
        self.unknown(at, &rule.other);
        self.filters(at, &rule.filters);
        let mut matches = Vec::new();
        for (index, one) in rule.matches.iter().enumerate() {
            matches.push(self.one_match(one, &format!("{at}.matches[{index}]"))?);
        }
        let mut backends = Vec::new();
        for (index, one) in rule.backend_refs.iter().enumerate() {
            let at = format!("{at}.backendRefs[{index}]");
            backends.push(self.backend(one, namespace, &at)?);
        }
        Ok(RuleInput {
            matches,
            backends,
            unsupported: self.unsupported.take(),
        })
    }

    fn filters(&mut self, at: &str, filters: &[Value]) {
        for (index, filter) in filters.iter().enumerate() {
            let kind = filter.get("type").and_then(Value::as_str);
            let what = format!(
                "the filter {} is not supported",
                kind.unwrap_or("without a type")
            );
            self.unsupported(format!("{at}.filters[{index}]"), &what);
        }
    }

    fn one_match(
        &mut self,
        from: &gateway::HttpRouteMatch,
        at: &str,
    ) -> Result<HttpRouteMatch, FieldError> {
        self.unknown(at, &from.other);
        let path = match &from.path {
            Some(path) => self.path(path, &format!("{at}.path"))?,
            None => None,
        };
        let headers = self.named(&from.headers, &format!("{at}.headers"));
        let lower = |(name, value): (ArcStr, HttpValueMatch)| {
            (ArcStr::from(name.to_ascii_lowercase()), value)
        };
        Ok(HttpRouteMatch {
            path,
            method: from.method.as_deref().map(ArcStr::from),
            headers: headers.into_iter().map(lower).collect(),
            query_params: self.named(&from.query_params, &format!("{at}.queryParams")),
        })
    }

    fn path(
        &mut self,
        from: &gateway::HttpPathMatch,
        at: &str,
    ) -> Result<Option<HttpPathMatch>, FieldError> {
        let value = from.value.as_deref().unwrap_or("/");
        let kind = from.type_.as_deref().unwrap_or("PathPrefix");
        if kind != "RegularExpression" && !value.starts_with('/') {
            let message = format!("{value:?} does not begin with a slash");
            return Err(FieldError::new(format!("{at}.value"), message));
        }
        Ok(match kind {
            "Exact" => Some(HttpPathMatch::Exact(value.into())),
            "PathPrefix" => {
                let trimmed = value.trim_end_matches('/');
                let prefix = if trimmed.is_empty() { "/" } else { trimmed };
                Some(HttpPathMatch::Prefix(prefix.into()))
            }
            "RegularExpression" => Some(HttpPathMatch::Regex(value.into())),
            other => {
                self.unsupported(format!("{at}.type"), &format!("{other:?} is not supported"));
                None
            }
        })
    }

    fn named(&mut self, from: &[HttpNamedMatch], at: &str) -> Vec<(ArcStr, HttpValueMatch)> {
        let mut read = Vec::new();
        for (index, one) in from.iter().enumerate() {
            let value = match one.type_.as_deref() {
                None | Some("Exact") => HttpValueMatch::Exact(one.value.as_str().into()),
                Some("RegularExpression") => HttpValueMatch::Regex(one.value.as_str().into()),
                Some(other) => {
                    let what = format!("{other:?} is not supported");
                    self.unsupported(format!("{at}[{index}].type"), &what);
                    continue;
                }
            };
            read.push((one.name.as_str().into(), value));
        }
        read
    }

    fn backend(
        &mut self,
        from: &gateway::HttpBackendRef,
        namespace: &str,
        at: &str,
    ) -> Result<BackendInput, FieldError> {
        self.unknown(at, &from.other);
        self.filters(at, &from.filters);
        let group = from.group.as_deref().unwrap_or_default();
        let kind = from.kind.as_deref().unwrap_or("Service");
        let weight = from.weight.unwrap_or(1);
        let weight = u32::try_from(weight).map_err(|_| {
            FieldError::new(format!("{at}.weight"), format!("{weight} is less than 0"))
        })?;
        let is_service = service_kind(group, kind) == Some(Kind::Service);
        let (target, number) = match from.port {
            Some(number) if is_service => {
                let number = port(number)
                    .map_err(|message| FieldError::new(format!("{at}.port"), message))?;
                let namespace = from.namespace.as_deref().unwrap_or(namespace);
                let target = ObjectKey::new(Kind::Service, namespace, from.name.as_str());
                (Ok(target), number)
            }
            None if is_service => {
                let message = "is needed: its share of requests is answered with 500";
                self.notes.push(Note::new(format!("{at}.port"), message));
                (Err(arcstr::literal!("a backend without a port")), 0)
            }
            _ => {
                let message =
                    format!("{kind} is not supported: its share of requests is answered with 500");
                self.notes.push(Note::new(format!("{at}.kind"), message));
                (Err(arcstr::format!("a backend of the kind {kind}")), 0)
            }
        };
        Ok(BackendInput {
            target,
            port: number,
            weight,
        })
    }
}
