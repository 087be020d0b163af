//! Conversion of VirtualServices to routes: `ambit_virtual_service` converts their rules to HTTPRoute rules, which are
//! parsed like those of HTTPRoutes. A field without a counterpart makes its rule unusable, like an unknown filter of an
//! HTTPRoute: requests that the rule matches without the field are answered with an error.

use ambit_k8s_api::{
    Kind, VirtualService, created,
    gateway::{HttpRouteMatch, HttpRouteRetry},
};
use ambit_model::{
    ArcStr, HttpFilter, HttpPathMatch as Path, HttpRetry, HttpRouteMatch as Match, PathChange,
    RouteName,
};
use ambit_virtual_service::{
    DestinationTarget, FieldRemark, RouteRule, RuleDestination, RuleMatch, RuleMirror,
    fully_qualified_name, is_for_mesh,
};

use crate::{
    config::MeshConfig,
    objects::{
        destination_rule::parse_export_to,
        http_fault,
        readable::Parsed,
        route::{
            backends::BackendInput,
            filters::FilterInput,
            hosts::VirtualServiceScope,
            input::{RouteInput, RouteRules},
            mirrors::MirrorInput,
            object::namespace,
            reader::RuleReader,
            references::ServiceReference,
            retries,
            rules::{MatchScope, RouteRuleInput},
        },
        share,
    },
    problem::{FieldError, Note},
};

/// Fields with rules for connections, which have no effect on waypoints.
const STREAM_FIELDS: [&str; 2] = ["tcp", "tls"];

/// Parses a VirtualService, and notes fields that have no effect.
pub(crate) fn read(
    from: &VirtualService,
    config: &MeshConfig,
) -> Result<Parsed<RouteInput>, FieldError> {
    let mut notes = Vec::new();
    let mut scope = parse_scope(from, config, &mut notes);
    if !scope.is_for_mesh {
        return Ok(Parsed::new(
            Some(build_route(from, scope, Vec::new())),
            notes,
        ));
    }
    for name in STREAM_FIELDS
        .into_iter()
        .filter(|name| from.spec.unknown.contains_key(*name))
    {
        let message = "has no effect: of a VirtualService waypoints follow the rules for HTTP; use TCPRoute or TLSRoute";
        notes.push(Note::new(format!("spec.{name}"), message));
    }
    let http = &from.spec.http;
    let matches = http.iter().map(|rule| rule.matches.len()).sum();
    RuleReader::check_size(http.len(), matches)
        .map_err(|error| FieldError::new("spec.http", error.message))?;
    let mut reader = RuleReader::with_text_prefixes(&mut notes);
    let unknown = from.spec.unknown.keys();
    for name in unknown.filter(|name| !STREAM_FIELDS.contains(&name.as_str())) {
        reader.mark_unsupported(format!("spec.{name}"), "is not supported");
    }
    let of_all = reader.take_unsupported();
    let mut work = VirtualRuleReader {
        reader,
        namespace: namespace(&from.metadata),
        config,
    };
    let mut rules = Vec::new();
    for (number, rule) in http.iter().enumerate() {
        work.reader.begin_rule(of_all.as_ref());
        rules.extend(work.convert_rule(RouteRule::from_http_rule(number, rule))?);
    }
    scope.has_catch_all_rule = rules.iter().any(is_catch_all);
    Ok(Parsed::new(Some(build_route(from, scope, rules)), notes))
}

/// Returns the hosts, namespaces and proxies that a VirtualService applies to. Invalid hosts are noted.
pub(crate) fn parse_scope(
    from: &VirtualService,
    config: &MeshConfig,
    notes: &mut Vec<Note>,
) -> VirtualServiceScope {
    let spec = &from.spec;
    let namespace = namespace(&from.metadata);
    let mut hosts = Vec::new();
    for (number, host) in spec.hosts.iter().enumerate() {
        match fully_qualified_name(host, namespace, &config.cluster_domain) {
            Some(name) => hosts.push(ArcStr::from(name)),
            None => notes.push(Note::new(
                format!("spec.hosts[{number}]"),
                format!("has no effect: {host:?} is no name of a service"),
            )),
        }
    }
    hosts.sort_unstable();
    hosts.dedup();
    VirtualServiceScope {
        hosts,
        export_to: parse_export_to(&spec.export_to, namespace),
        is_for_mesh: is_for_mesh(&spec.gateways),
        has_catch_all_rule: false,
    }
}

/// Builds the route of a VirtualService from its parsed parts.
pub(crate) fn build_route(
    from: &VirtualService,
    scope: VirtualServiceScope,
    rules: Vec<RouteRuleInput>,
) -> RouteInput {
    let metadata = &from.metadata;
    RouteInput {
        kind: Kind::VirtualService,
        name: RouteName {
            kind: Kind::VirtualService.as_str().into(),
            namespace: namespace(metadata).into(),
            name: metadata.name.as_deref().unwrap_or_default().into(),
        },
        created: created(metadata),
        parents: Vec::new(),
        scope: Some(scope),
        rules: RouteRules::Http(rules),
    }
}

/// Whether a rule matches all requests.
fn is_catch_all(rule: &RouteRuleInput) -> bool {
    let everything = |(of, scope): (&Match, &MatchScope)| {
        let is_any_path = match &of.path {
            None => true,
            Some(Path::TextPrefix(path)) => path == "/",
            Some(_) => false,
        };
        let rest = Match {
            path: None,
            ..of.clone()
        };
        is_any_path && rest == Match::default() && *scope == MatchScope::default()
    };
    rule.matches.is_empty() || rule.matches.iter().zip(&rule.match_scopes).any(everything)
}

/// Parser of the rules of one VirtualService.
struct VirtualRuleReader<'a> {
    reader: RuleReader<'a>,
    namespace: &'a str,
    config: &'a MeshConfig,
}

impl VirtualRuleReader<'_> {
    /// Parses one rule; `None` if it applies to gateways alone.
    fn convert_rule(&mut self, from: RouteRule) -> Result<Option<RouteRuleInput>, FieldError> {
        let at = format!("spec.{}", from.field_path);
        let mut matches = Vec::new();
        let mut scopes = Vec::new();
        for one in &from.matches {
            if !one.is_for_mesh {
                let message = "has no effect: it is for gateways, and not for clients in the mesh";
                self.reader
                    .add_note(format!("spec.{}.gateways", one.field_path), message);
                continue;
            }
            matches.push(self.convert_match(one)?);
            scopes.push(MatchScope {
                port: one.port,
                namespace: one.source_namespace.as_deref().map(ArcStr::from),
            });
        }
        if matches.is_empty() && !from.matches.is_empty() {
            return Ok(None);
        }
        for FieldRemark { field, message } in &from.unsupported {
            self.reader
                .mark_unsupported(format!("spec.{field}"), message);
        }
        for FieldRemark { field, message } in &from.notes {
            self.reader
                .add_note(format!("spec.{field}"), message.as_str());
        }
        let filters = self.convert_filters(&at, &from)?;
        let retry = from.retry.as_ref();
        let retry = retry.map(|retry| self.convert_retry(&format!("{at}.retries"), retry));
        let mut rule = RouteRuleInput {
            name: Some(match from.name {
                Some(name) => name.into(),
                None => from.field_path.as_str().into(),
            }),
            matches,
            match_scopes: scopes,
            filters,
            timeouts: self.reader.parse_timeouts(&at, Some(&from.timeouts))?,
            retry: retry.transpose()?,
            ..RouteRuleInput::default()
        };
        for to in &from.destinations {
            rule.backends.push(self.convert_destination(&at, to)?);
        }
        match_root_by_default(&mut rule);
        rule.unsupported_part = self.reader.take_unsupported();
        Ok(Some(rule))
    }

    fn convert_match(&mut self, from: &RuleMatch) -> Result<Match, FieldError> {
        let at = format!("spec.{}", from.field_path);
        let without = HttpRouteMatch {
            headers: from.without_headers.clone(),
            ..HttpRouteMatch::default()
        };
        let mut request = from.request.clone();
        let path = match request.path.take() {
            Some(path) => self.reader.parse_path_match(&path, &format!("{at}.uri"))?,
            None => None,
        };
        let request = self.reader.parse_match(&request, &at)?;
        let without = self
            .reader
            .parse_match(&without, &format!("{at}.withoutHeaders"))?;
        Ok(Match {
            path,
            without_headers: without.headers,
            ..request
        })
    }

    fn convert_filters(
        &mut self,
        at: &str,
        from: &RouteRule,
    ) -> Result<Vec<FilterInput>, FieldError> {
        let mut filters = self
            .reader
            .parse_filters(at, &from.filters, self.namespace)?;
        if let Some(fault) = &from.fault {
            match http_fault::parse_fault(fault, &format!("{at}.fault")) {
                Ok(fault) => filters.push(FilterInput::WithoutReferences(HttpFilter::Fault(fault))),
                Err(FieldError { field, message }) => self.reader.mark_unsupported(field, &message),
            }
        }
        for mirror in &from.mirrors {
            filters.push(FilterInput::Mirror(self.convert_mirror(mirror)?));
        }
        Ok(filters)
    }

    fn convert_mirror(&mut self, from: &RuleMirror) -> Result<MirrorInput, FieldError> {
        let at = format!("spec.{}", from.target.field_path);
        Ok(MirrorInput {
            service: self.convert_reference(&from.target, "nothing is mirrored there"),
            share: share::read(from.percent, from.fraction.as_ref(), &at)?,
        })
    }

    fn convert_destination(
        &mut self,
        at: &str,
        from: &RuleDestination,
    ) -> Result<BackendInput, FieldError> {
        let refused = "its share of requests is answered with an error";
        Ok(BackendInput {
            service: self.convert_reference(&from.target, refused),
            subset: from.target.subset.as_deref().map(ArcStr::from),
            weight: from.weight,
            filters: self
                .reader
                .parse_filters(at, &from.filters, self.namespace)?,
        })
    }

    /// Returns the reference to a destination's service. An invalid host is noted, with its consequence.
    fn convert_reference(&mut self, to: &DestinationTarget, otherwise: &str) -> ServiceReference {
        let name = fully_qualified_name(&to.host, self.namespace, &self.config.cluster_domain);
        let host = name.map(ArcStr::from).ok_or_else(|| {
            let message = format!("{:?} is no name of a service: {otherwise}", to.host);
            self.reader
                .add_note(format!("spec.{}.host", to.field_path), message);
            arcstr::format!("{:?} is no name of a service", to.host)
        });
        ServiceReference::to_host(host, to.port)
    }

    /// Parses the retry policy. In a VirtualService, zero attempts disable retries.
    fn convert_retry(&mut self, at: &str, from: &HttpRouteRetry) -> Result<HttpRetry, FieldError> {
        if from.attempts == Some(0) {
            return Ok(HttpRetry::default());
        }
        retries::read(&mut self.reader, at, from)
    }
}

/// Sets the path condition `/` on matches without one in a rule that rewrites the path prefix, so that the rewrite
/// replaces the root.
fn match_root_by_default(rule: &mut RouteRuleInput) {
    let replaces = |filter: &FilterInput| {
        let FilterInput::WithoutReferences(HttpFilter::Rewrite(rewrite)) = filter else {
            return false;
        };
        matches!(rewrite.path, Some(PathChange::Matched(_)))
    };
    if !rule.filters.iter().any(replaces) {
        return;
    }
    if rule.matches.is_empty() {
        rule.matches.push(Match::default());
        rule.match_scopes.push(MatchScope::default());
    }
    for one in &mut rule.matches {
        let root = || Path::TextPrefix(arcstr::literal!("/"));
        one.path.get_or_insert_with(root);
    }
}
