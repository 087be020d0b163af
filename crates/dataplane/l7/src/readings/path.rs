//! Comparison of path patterns with the readings of a path.

use std::{borrow::Cow, cell::OnceCell};

use ambit_model::{ArcStr, HttpPathMatch, PathPattern, PathTemplate, StringMatch};
use regex::Regex;

use super::{reading::ReadingMode, text::map_text};
use crate::{
    path::{canonicalize_escapes, decode_escapes, path_readings},
    route::full_match_regex,
};

/// Forwarded path of a request, with its readings by lenient servers.
#[derive(Debug)]
pub(crate) struct PathReadings<'a> {
    forwarded_path: Cow<'a, str>,
    lenient_readings: OnceCell<Vec<String>>,
}

/// Path pattern of a policy, route or rate limit, in the forms that the readings of a path have.
#[derive(Debug)]
pub(crate) struct PathMatcher {
    forwarded_predicate: PathPredicate,
    /// Pattern in lower case with decoded escapes, compared with readings.
    lenient_predicate: PathPredicate,
    /// Readings of a pattern that is itself ambiguous (`/a;v=1/*`). [`ReadingMode::AnyReading`] ignores them where the
    /// forwarded path matches.
    own_readings: Vec<PathPredicate>,
}

#[derive(Debug)]
enum PathPredicate {
    TextPattern(StringMatch),
    Template(PathTemplate),
    /// Path that equals the prefix or is below it by whole segments; the prefix has no trailing slash.
    PathPrefix(ArcStr),
    Regex(Regex),
    /// Replacement of an invalid pattern, which matches every path.
    MatchAll,
}

impl<'a> PathReadings<'a> {
    pub(super) fn new(path: &'a str) -> Self {
        Self {
            // Changes a path only if normalization is off.
            forwarded_path: canonicalize_escapes(path),
            lenient_readings: OnceCell::new(),
        }
    }

    fn lenient_readings(&self) -> impl Iterator<Item = &str> {
        let lenient = self
            .lenient_readings
            .get_or_init(|| path_readings(&self.forwarded_path));
        let own = lenient.is_empty().then_some(&*self.forwarded_path);
        lenient.iter().map(String::as_str).chain(own)
    }
}

/// Returns the path of a target in origin or absolute form.
pub(super) fn target_path(target: &str) -> Option<&str> {
    let path = match target.split_once("://") {
        Some((_, rest)) => rest.get(rest.find('/')?..)?,
        None => target,
    };
    path.starts_with(['/', '\\'])
        .then(|| path.split('?').next().unwrap_or_default())
}

impl PathMatcher {
    /// Compiles a path pattern of a policy.
    ///
    /// # Errors
    /// When a template is invalid.
    pub(crate) fn from_policy(pattern: &PathPattern) -> Result<Self, ArcStr> {
        Ok(match pattern {
            PathPattern::Text(text) => Self {
                forwarded_predicate: PathPredicate::TextPattern(map_text(text, canonicalize)),
                lenient_predicate: PathPredicate::TextPattern(map_text(text, lowercase)),
                own_readings: own_readings(text),
            },
            PathPattern::Template(text) => {
                let template: PathTemplate = text
                    .parse()
                    .map_err(|error| arcstr::format!("path template {text:?}: {error}"))?;
                let lenient = template
                    .clone()
                    .map_literal_text(|text| lowercase(text).into());
                Self {
                    forwarded_predicate: PathPredicate::Template(
                        template.map_literal_text(|text| canonicalize(text).into()),
                    ),
                    lenient_predicate: PathPredicate::Template(lenient),
                    own_readings: Vec::new(),
                }
            }
        })
    }

    /// Compiles the path condition of a rate limit. An invalid expression matches every path that it may have been
    /// intended for.
    pub(crate) fn from_route_match(of: &HttpPathMatch) -> Self {
        let (forwarded, lenient) = match of {
            HttpPathMatch::Exact(path) => (
                PathPredicate::TextPattern(StringMatch::Exact(canonicalize(path).into())),
                PathPredicate::TextPattern(StringMatch::Exact(lowercase(path).into())),
            ),
            HttpPathMatch::Prefix(path) => {
                let path = path.strip_suffix('/').unwrap_or(path);
                (
                    PathPredicate::PathPrefix(canonicalize(path).into()),
                    PathPredicate::PathPrefix(lowercase(path).into()),
                )
            }
            HttpPathMatch::TextPrefix(path) => (
                PathPredicate::TextPattern(StringMatch::Prefix(canonicalize(path).into())),
                PathPredicate::TextPattern(StringMatch::Prefix(lowercase(path).into())),
            ),
            HttpPathMatch::Regex(pattern) => {
                let shape = |pattern: &str| {
                    full_match_regex(pattern).map_or(PathPredicate::MatchAll, PathPredicate::Regex)
                };
                (shape(pattern), shape(&format!("(?i:{pattern})")))
            }
        };
        Self {
            forwarded_predicate: forwarded,
            lenient_predicate: lenient,
            own_readings: Vec::new(),
        }
    }

    pub(super) fn matches(&self, path: &PathReadings<'_>, reading: ReadingMode) -> bool {
        let is_forwarded = self.forwarded_predicate.matches(&path.forwarded_path);
        match reading {
            ReadingMode::AnyReading => {
                is_forwarded
                    || path
                        .lenient_readings()
                        .any(|one| self.lenient_predicate.matches_any_reading(one))
            }
            ReadingMode::AllReadings | ReadingMode::DenialException if !is_forwarded => false,
            ReadingMode::AllReadings | ReadingMode::DenialException
                if matches!(
                    self.forwarded_predicate,
                    PathPredicate::TextPattern(StringMatch::Exact(_))
                ) =>
            {
                true
            }
            ReadingMode::AllReadings | ReadingMode::DenialException => {
                path.lenient_readings().all(|one| {
                    let mut own = self.own_readings.iter();
                    self.lenient_predicate.matches_any_reading(one)
                        || own.any(|shape| shape.matches_any_reading(one))
                })
            }
        }
    }
}

impl PathPredicate {
    /// Whether the pattern matches a reading of a path, with or without a trailing slash.
    fn matches_any_reading(&self, path: &str) -> bool {
        let without = path.strip_suffix('/').filter(|rest| !rest.is_empty());
        self.matches(path) || without.is_some_and(|path| self.matches(path))
    }

    fn matches(&self, path: &str) -> bool {
        match self {
            Self::TextPattern(text) => text.matches(path),
            Self::Template(template) => template.matches(path),
            Self::PathPrefix(prefix) => path
                .strip_prefix(prefix.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            Self::Regex(pattern) => pattern.is_match(path),
            Self::MatchAll => true,
        }
    }
}

/// Returns the readings of a pattern that begins or ends a path. An exact pattern has none, since its readings are
/// those of the forwarded path.
fn own_readings(pattern: &StringMatch) -> Vec<PathPredicate> {
    match pattern {
        StringMatch::Exact(_) | StringMatch::Presence => Vec::new(),
        StringMatch::Prefix(text) => {
            let all = path_readings(&canonicalize_escapes(text)).into_iter();
            all.map(|text| PathPredicate::TextPattern(StringMatch::Prefix(text.into())))
                .collect()
        }
        StringMatch::Suffix(text) => {
            let text = lowercase(text);
            let names = text
                .split('/')
                .map(|name| name.split(';').next().unwrap_or_default());
            let bare = names.collect::<Vec<_>>().join("/");
            vec![PathPredicate::TextPattern(StringMatch::Suffix(bare.into()))]
        }
    }
}

fn canonicalize(text: &str) -> String {
    canonicalize_escapes(text).into_owned()
}

fn lowercase(text: &str) -> String {
    decode_escapes(text).to_lowercase()
}
