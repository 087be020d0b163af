//! CEL expressions for conditions and labels of telemetry, with Envoy's request attributes.
//!
//! Evaluation is bounded: expressions are limited in length and nesting, comprehensions are rejected as in Envoy, and
//! regular expressions must be small literals. Referenced attributes and functions are checked when the expression is
//! compiled.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, LazyLock},
};

use cel::{
    Context, Env, Value,
    common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue},
    objects::{Key, Map},
};
use http::HeaderMap;

use crate::{NeededHeaders, RequestObservation};

#[cfg(test)]
mod tests;

/// Maximum length of an expression, in bytes.
const MAX_EXPRESSION_BYTES: usize = 1024;
/// Maximum nesting depth of an expression.
const MAX_DEPTH: u16 = 24;
/// Maximum memory of a compiled regular expression, in bytes.
const MAX_REGEX_BYTES: usize = 64 << 10;

/// Envoy's attributes that expressions may use: each object with its fields.
const ATTRIBUTES: &[(&str, &[&str])] = &[
    (
        "request",
        &[
            "path",
            "url_path",
            "host",
            "scheme",
            "method",
            "headers",
            "referer",
            "useragent",
            "id",
            "protocol",
            "query",
            "size",
        ],
    ),
    (
        "response",
        &[
            "code",
            "code_details",
            "flags",
            "grpc_status",
            "headers",
            "size",
        ],
    ),
    ("source", &["address", "port"]),
    ("destination", &["address", "port"]),
    (
        "connection",
        &[
            "mtls",
            "requested_server_name",
            "uri_san_peer_certificate",
            "termination_details",
        ],
    ),
    ("upstream", &["address", "port", "transport_failure_reason"]),
    ("xds", &["route_name", "cluster_name"]),
];

/// CEL functions and operators that expressions may use.
const FUNCTIONS: &[&str] = &[
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "size",
    "string",
    "int",
    "uint",
    "double",
    "bool",
];

static CEL_ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// Reason why a CEL expression cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// The expression is longer than `MAX_EXPRESSION_BYTES`.
    #[error("is longer than {MAX_EXPRESSION_BYTES} bytes")]
    TooLong,
    /// The text is not a CEL expression.
    #[error("is no CEL expression: {0}")]
    Syntax(String),
    /// The expression is nested more deeply than `MAX_DEPTH`.
    #[error("is nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    /// The expression contains a comprehension, which could loop.
    #[error("comprehensions (all, exists, map, filter) are not supported, as in Envoy")]
    Comprehension,
    /// The expression refers to an unknown attribute.
    #[error("{0} is no attribute of requests that is known here")]
    UnknownAttribute(String),
    /// The expression calls an unknown function.
    #[error("the function {0} is not supported")]
    UnknownFunction(String),
    /// A regular expression is not a literal, or is too large.
    #[error("the pattern of matches: {0}")]
    InvalidRegex(String),
    /// The expression constructs a message, which is unsupported.
    #[error("messages cannot be made")]
    MessageLiteral,
}

/// Compiled CEL expression.
#[derive(Debug)]
pub struct Expression {
    root: IdedExpr,
    /// Attributes that the expression refers to, as pairs of object and field.
    attributes: BTreeSet<(&'static str, &'static str)>,
}

impl Expression {
    /// Compiles and validates an expression.
    ///
    /// # Errors
    ///
    /// When the expression is invalid or unsupported.
    pub fn new(text: &str) -> Result<Self, ExpressionError> {
        if text.len() > MAX_EXPRESSION_BYTES {
            return Err(ExpressionError::TooLong);
        }
        let parser = CEL_ENVIRONMENT.parser().max_recursion_depth(MAX_DEPTH);
        let root = parser.parse(text).map_err(|errors| {
            let first = errors.errors.first();
            ExpressionError::Syntax(first.map_or_else(String::new, |one| one.msg.clone()))
        })?;
        let mut named = BTreeSet::new();
        validate_expression(&root, 0, &mut named)?;
        Ok(Self {
            root,
            attributes: named,
        })
    }

    /// Returns the headers that the expression reads.
    pub fn needed_headers(&self) -> NeededHeaders {
        let mut wants = NeededHeaders {
            all_request_headers: self.attributes.contains(&("request", "headers")),
            all_response_headers: self.attributes.contains(&("response", "headers")),
            ..NeededHeaders::default()
        };
        for (field, header) in [
            ("referer", http::header::REFERER),
            ("useragent", http::header::USER_AGENT),
            ("id", crate::trace::X_REQUEST_ID),
        ] {
            if self.attributes.contains(&("request", field)) {
                wants.add_request_header(header);
            }
        }
        wants
    }

    /// Whether the expression evaluates to true for a request. Evaluation errors count as false, as in Envoy.
    pub fn matches(&self, of: &RequestObservation<'_>) -> bool {
        matches!(self.evaluate(of), Some(Value::Bool(true)))
    }

    /// Evaluates the expression for a request, and returns the result as text; `None` if it has no value.
    pub fn evaluate_text(&self, of: &RequestObservation<'_>) -> Option<String> {
        match self.evaluate(of)? {
            Value::String(text) => Some(text.as_str().to_owned()),
            Value::Int(number) => Some(number.to_string()),
            Value::UInt(number) => Some(number.to_string()),
            Value::Float(number) => Some(number.to_string()),
            Value::Bool(is) => Some(is.to_string()),
            _ => None,
        }
    }

    fn evaluate(&self, of: &RequestObservation<'_>) -> Option<Value> {
        let mut context = Context::with_env(CEL_ENVIRONMENT.clone());
        let mut objects: HashMap<&str, HashMap<Key, Value>> = HashMap::new();
        for (object, field) in &self.attributes {
            let fields = objects.entry(object).or_default();
            if let Some(value) = attribute_value(of, object, field) {
                fields.insert(map_key(field), value);
            }
        }
        for (object, fields) in objects {
            context.add_variable_from_value(object, map_value(fields));
        }
        Value::resolve(&self.root, &context).ok()
    }
}

/// Validates an expression, and collects the attributes that it references.
fn validate_expression(
    node: &IdedExpr,
    depth: u16,
    referenced_attributes: &mut BTreeSet<(&'static str, &'static str)>,
) -> Result<(), ExpressionError> {
    if depth > MAX_DEPTH {
        return Err(ExpressionError::TooDeep);
    }
    let depth = depth + 1;
    match &node.expr {
        Expr::Unspecified | Expr::Literal(_) => Ok(()),
        Expr::Comprehension(_) => Err(ExpressionError::Comprehension),
        Expr::Struct(_) => Err(ExpressionError::MessageLiteral),
        // Identifies an attribute only together with its field.
        Expr::Ident(name) => Err(ExpressionError::UnknownAttribute(name.clone())),
        Expr::Select(select) => {
            let Expr::Ident(object) = &select.operand.expr else {
                return validate_expression(&select.operand, depth, referenced_attributes);
            };
            let found = ATTRIBUTES.iter().find(|(name, _)| name == object);
            let found = found.and_then(|(object, fields)| {
                let field = fields.iter().find(|field| **field == select.field)?;
                Some((*object, *field))
            });
            let unknown =
                || ExpressionError::UnknownAttribute(format!("{object}.{}", select.field));
            referenced_attributes.insert(found.ok_or_else(unknown)?);
            Ok(())
        }
        Expr::List(list) => {
            let mut all = list.elements.iter();
            all.try_for_each(|one| validate_expression(one, depth, referenced_attributes))
        }
        Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => {
                validate_expression(&entry.key, depth, referenced_attributes)?;
                validate_expression(&entry.value, depth, referenced_attributes)
            }
            EntryExpr::StructField(_) => Err(ExpressionError::MessageLiteral),
        }),
        Expr::Call(call) => {
            validate_call(call)?;
            let target = call.target.as_deref().into_iter();
            let mut all = target.chain(&call.args);
            all.try_for_each(|one| validate_expression(one, depth, referenced_attributes))
        }
    }
}

fn validate_call(call: &CallExpr) -> Result<(), ExpressionError> {
    let name = call.func_name.as_str();
    // Names of operators cannot occur as names of function calls.
    let is_operator = name.contains(['_', '@', '!', '-']);
    if !is_operator && !FUNCTIONS.contains(&name) {
        return Err(ExpressionError::UnknownFunction(name.to_owned()));
    }
    if name != "matches" {
        return Ok(());
    }
    let pattern = call.args.last().map(|last| &last.expr);
    let Some(Expr::Literal(LiteralValue::String(pattern))) = pattern else {
        let message = "has to be written out".to_owned();
        return Err(ExpressionError::InvalidRegex(message));
    };
    let compiled = regex::RegexBuilder::new(pattern.inner())
        .size_limit(MAX_REGEX_BYTES)
        .build();
    let too_much = |error: regex::Error| ExpressionError::InvalidRegex(error.to_string());
    compiled.map(drop).map_err(too_much)
}

fn map_key(name: &str) -> Key {
    Key::String(Arc::new(name.to_owned()))
}

fn map_value(fields: HashMap<Key, Value>) -> Value {
    Value::Map(Map {
        map: Arc::new(fields),
    })
}

fn text_value(text: &str) -> Value {
    Value::String(Arc::new(text.to_owned()))
}

fn number_value(number: impl TryInto<i64>) -> Value {
    Value::Int(number.try_into().unwrap_or(i64::MAX))
}

fn header_value(all: &HeaderMap, name: &http::HeaderName) -> Option<Value> {
    let value = all.get(name)?;
    Some(text_value(&String::from_utf8_lossy(value.as_bytes())))
}

fn headers_value(all: &HeaderMap) -> Value {
    let mut fields = HashMap::new();
    for name in all.keys() {
        let values = all.get_all(name).iter();
        let values: Vec<_> = values
            .map(|value| String::from_utf8_lossy(value.as_bytes()))
            .collect();
        fields.insert(map_key(name.as_str()), text_value(&values.join(",")));
    }
    map_value(fields)
}

/// Returns the value of a request attribute by object and field, if the request has it.
fn attribute_value(of: &RequestObservation<'_>, object: &str, field: &str) -> Option<Value> {
    let path = || of.path.unwrap_or_default().split_once('?');
    let value = match (object, field) {
        ("request", "path") => text_value(of.path?),
        ("request", "url_path") => text_value(path().map_or(of.path?, |(path, _)| path)),
        ("request", "query") => text_value(path().map_or("", |(_, query)| query)),
        ("request", "host") => text_value(of.authority?),
        ("request", "scheme") => text_value("http"),
        ("request", "method") => text_value(of.method?),
        ("request", "headers") => headers_value(of.request_headers),
        ("request", "referer") => header_value(of.request_headers, &http::header::REFERER)?,
        ("request", "useragent") => header_value(of.request_headers, &http::header::USER_AGENT)?,
        ("request", "id") => header_value(of.request_headers, &crate::trace::X_REQUEST_ID)?,
        ("request", "protocol") => text_value(of.protocol?),
        ("request", "size") => number_value(of.request_bytes),
        ("response", "code") => number_value(of.response_code),
        ("response", "code_details") => text_value(of.response_code_details?),
        ("response", "flags") => number_value(of.response_flag_bits),
        ("response", "grpc_status") => number_value(of.grpc_status?),
        ("response", "headers") => headers_value(of.response_headers),
        ("response", "size") => number_value(of.response_bytes),
        ("source", "address") => text_value(&of.downstream_remote_address.to_string()),
        ("source", "port") => number_value(of.downstream_remote_address.port()),
        ("destination", "address") => text_value(&of.downstream_local_address.to_string()),
        ("destination", "port") => number_value(of.downstream_local_address.port()),
        ("connection", "mtls") => Value::Bool(of.downstream_spiffe_id.is_some()),
        ("connection", "requested_server_name") => text_value(of.server_name?),
        ("connection", "uri_san_peer_certificate") => text_value(of.downstream_spiffe_id?),
        ("connection", "termination_details") => text_value(of.termination_details?),
        ("upstream", "address") => text_value(&of.upstream_host?.to_string()),
        ("upstream", "port") => number_value(of.upstream_host?.port()),
        ("upstream", "transport_failure_reason") => text_value(of.upstream_transport_failure?),
        ("xds", "route_name") => text_value(of.route_name?),
        ("xds", "cluster_name") => text_value(of.upstream_cluster?),
        _ => return None,
    };
    Some(value)
}
