//! Comparison of path patterns with the readings of a path.

use std::{borrow::Cow, cell::OnceCell};

use ambit_model::{ArcStr, HttpPathMatch, PathPattern, PathTemplate, StringMatch};
use regex::Regex;

use super::{reading::Reading, text::map_text};
use crate::{
    path::{canonical_escapes, decoded_escapes, readings},
    route::regex,
};

/// Forwarded path of a request, with its readings by lenient servers.
#[derive(Debug)]
pub(crate) struct PathReadings<'a> {
    forwarded: Cow<'a, str>,
    lenient: OnceCell<Vec<String>>,
}

/// Path pattern of a policy, route or rate limit, in the forms that the readings of a path have.
#[derive(Debug)]
pub(crate) struct PathMatcher {
    forwarded: Shape,
    /// Pattern in lower case with decoded escapes, compared with readings.
    lenient: Shape,
    /// Readings of a pattern that is itself ambiguous (`/a;v=1/*`). [`Reading::Any`] ignores them where the forwarded
    /// path matches.
    own_readings: Vec<Shape>,
}

#[derive(Debug)]
enum Shape {
    Text(StringMatch),
    Template(PathTemplate),
    /// Equal to the path, or below it by whole segments; the path has no trailing slash.
    Below(ArcStr),
    Regex(Regex),
    /// Replacement of an invalid pattern, which matches every path.
    Everything,
}

impl<'a> PathReadings<'a> {
    pub(super) fn new(path: &'a str) -> Self {
        Self {
            // Changes a path only if normalization is off.
            forwarded: canonical_escapes(path),
            lenient: OnceCell::new(),
        }
    }

    fn lenient(&self) -> impl Iterator<Item = &str> {
        let lenient = self.lenient.get_or_init(|| readings(&self.forwarded));
        let own = lenient.is_empty().then_some(&*self.forwarded);
        lenient.iter().map(String::as_str).chain(own)
    }
}

/// Returns the path of a target in origin or absolute form.
pub(super) fn of_target(target: &str) -> Option<&str> {
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
    pub(crate) fn of_policy(pattern: &PathPattern) -> Result<Self, ArcStr> {
        Ok(match pattern {
            PathPattern::Text(text) => Self {
                forwarded: Shape::Text(map_text(text, canonical)),
                lenient: Shape::Text(map_text(text, lower)),
                own_readings: own_readings(text),
            },
            PathPattern::Template(text) => {
                let template: PathTemplate = text
                    .parse()
                    .map_err(|error| arcstr::format!("path template {text:?}: {error}"))?;
                let lenient = template.clone().map_text(|text| lower(text).into());
                Self {
                    forwarded: Shape::Template(template.map_text(|text| canonical(text).into())),
                    lenient: Shape::Template(lenient),
                    own_readings: Vec::new(),
                }
            }
        })
    }

    /// Compiles the path of a rate limit's match. An invalid expression matches every path that it might be meant for.
    pub(crate) fn of_match(of: &HttpPathMatch) -> Self {
        let (forwarded, lenient) = match of {
            HttpPathMatch::Exact(path) => (
                Shape::Text(StringMatch::Exact(canonical(path).into())),
                Shape::Text(StringMatch::Exact(lower(path).into())),
            ),
            HttpPathMatch::Prefix(path) => {
                let path = path.strip_suffix('/').unwrap_or(path);
                (
                    Shape::Below(canonical(path).into()),
                    Shape::Below(lower(path).into()),
                )
            }
            HttpPathMatch::TextPrefix(path) => (
                Shape::Text(StringMatch::Prefix(canonical(path).into())),
                Shape::Text(StringMatch::Prefix(lower(path).into())),
            ),
            HttpPathMatch::Regex(pattern) => {
                let shape = |pattern: &str| regex(pattern).map_or(Shape::Everything, Shape::Regex);
                (shape(pattern), shape(&format!("(?i:{pattern})")))
            }
        };
        Self {
            forwarded,
            lenient,
            own_readings: Vec::new(),
        }
    }

    pub(super) fn matches(&self, path: &PathReadings<'_>, reading: Reading) -> bool {
        let is_forwarded = self.forwarded.matches(&path.forwarded);
        match reading {
            Reading::Any => is_forwarded || path.lenient().any(|one| self.lenient.reads(one)),
            Reading::All | Reading::Exception if !is_forwarded => false,
            Reading::All | Reading::Exception
                if matches!(self.forwarded, Shape::Text(StringMatch::Exact(_))) =>
            {
                true
            }
            Reading::All | Reading::Exception => path.lenient().all(|one| {
                let mut own = self.own_readings.iter();
                self.lenient.reads(one) || own.any(|shape| shape.reads(one))
            }),
        }
    }
}

impl Shape {
    /// Whether the pattern matches a reading of a path, with or without a trailing slash.
    fn reads(&self, path: &str) -> bool {
        let without = path.strip_suffix('/').filter(|rest| !rest.is_empty());
        self.matches(path) || without.is_some_and(|path| self.matches(path))
    }

    fn matches(&self, path: &str) -> bool {
        match self {
            Self::Text(text) => text.matches(path),
            Self::Template(template) => template.matches(path),
            Self::Below(prefix) => path
                .strip_prefix(prefix.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            Self::Regex(pattern) => pattern.is_match(path),
            Self::Everything => true,
        }
    }
}

/// Returns the readings of a pattern that begins or ends a path. An exact pattern has none, since its readings are
/// those of the forwarded path.
fn own_readings(pattern: &StringMatch) -> Vec<Shape> {
    match pattern {
        StringMatch::Exact(_) | StringMatch::Presence => Vec::new(),
        StringMatch::Prefix(text) => {
            let all = readings(&canonical_escapes(text)).into_iter();
            all.map(|text| Shape::Text(StringMatch::Prefix(text.into())))
                .collect()
        }
        StringMatch::Suffix(text) => {
            let text = lower(text);
            let names = text
                .split('/')
                .map(|name| name.split(';').next().unwrap_or_default());
            let bare = names.collect::<Vec<_>>().join("/");
            vec![Shape::Text(StringMatch::Suffix(bare.into()))]
        }
    }
}

fn canonical(text: &str) -> String {
    canonical_escapes(text).into_owned()
}

fn lower(text: &str) -> String {
    decoded_escapes(text).to_lowercase()
}
