//! Path templates of policies: `{*}` matches one segment, `{**}` any number of them.

use std::str::FromStr;

use arcstr::ArcStr;

/// Path template with Istio's rules: `{*}` and `{**}` must be whole segments, only text may follow `{**}`, and no other
/// asterisk or brace is allowed. `{**}` matches any text between its neighbours, including none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathTemplate {
    /// Segments before `{**}`, or all segments if there is no `{**}`.
    segments: Vec<Segment>,
    /// Text that follows `{**}`, if the template has one.
    suffix: Option<ArcStr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Any,
    Text(ArcStr),
}

/// Error of parsing a path template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathTemplateError {
    /// The template does not begin with a slash.
    #[error("a path template begins with a slash")]
    NoSlash,
    /// A segment is neither text nor exactly one operator.
    #[error("{0:?}: a segment is {{*}}, {{**}} or has neither braces nor asterisks")]
    InvalidSegment(String),
    /// Another operator follows `{**}`, although `{**}` must be the last operator.
    #[error("{{**}} is the last operator of a path template")]
    OperatorAfterDoubleStar,
}

impl PathTemplate {
    /// Whether a policy's path contains a template operator.
    pub fn is_template(text: &str) -> bool {
        text.contains("{*}") || text.contains("{**}")
    }

    /// Returns the template with each literal text replaced by `map` of it, for instance to normalize the text like
    /// paths.
    #[must_use]
    pub fn map_literal_text(self, map: impl Fn(&str) -> ArcStr) -> Self {
        let segments = self.segments.into_iter().map(|segment| match segment {
            Segment::Any => Segment::Any,
            Segment::Text(text) => Segment::Text(map(&text)),
        });
        Self {
            segments: segments.collect(),
            suffix: self.suffix.map(|text| map(&text)),
        }
    }

    /// Whether the template matches a path.
    pub fn matches(&self, path: &str) -> bool {
        let mut path = path;
        for segment in &self.segments {
            let Some(below) = path.strip_prefix('/') else {
                return false;
            };
            let (name, rest) = below.split_at(below.find('/').unwrap_or(below.len()));
            let matches = match segment {
                Segment::Any => !name.is_empty(),
                Segment::Text(text) => name == text,
            };
            if !matches {
                return false;
            }
            path = rest;
        }
        match &self.suffix {
            None => path.is_empty(),
            Some(end) => path
                .strip_prefix('/')
                .is_some_and(|below| below.ends_with(end.as_str())),
        }
    }
}

impl FromStr for PathTemplate {
    type Err = PathTemplateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut rest = text.strip_prefix('/').ok_or(PathTemplateError::NoSlash)?;
        let mut segments = Vec::new();
        loop {
            let (segment, below) = match rest.split_once('/') {
                Some((segment, below)) => (segment, Some(below)),
                None => (rest, None),
            };
            match segment {
                "{*}" => segments.push(Segment::Any),
                "{**}" => {
                    let end = rest.strip_prefix("{**}").unwrap_or_default();
                    return match has_operator(end) {
                        true => Err(PathTemplateError::OperatorAfterDoubleStar),
                        false => Ok(Self {
                            segments,
                            suffix: Some(end.into()),
                        }),
                    };
                }
                text if has_operator(text) => {
                    return Err(PathTemplateError::InvalidSegment(text.to_owned()));
                }
                text => segments.push(Segment::Text(text.into())),
            }
            match below {
                Some(below) => rest = below,
                None => {
                    return Ok(Self {
                        segments,
                        suffix: None,
                    });
                }
            }
        }
    }
}

fn has_operator(text: &str) -> bool {
    text.contains(['{', '}', '*'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_match_segments() {
        for (template, matching, other) in [
            (
                "/a/{*}",
                &["/a/b", "/a/%2F"][..],
                &["/a/", "/a", "/a/b/c", "/a//", "/a/b/", "/b/b"][..],
            ),
            (
                "/a/{*}/c",
                &["/a/b/c"],
                &["/a//c", "/a/b/c/", "/a/b/b/c", "/a/b"],
            ),
            ("/a/{**}", &["/a/", "/a/b", "/a/b/c/"], &["/a", "/ab"]),
            (
                "/a/{**}/",
                &["/a/b/", "/a/b/c/", "/a//"],
                &["/a/", "/a/b", "/a"],
            ),
            (
                "/{*}/b/{**}/x.txt",
                &["/a/b/c/x.txt", "/a/b/c/d/x.txt"],
                &["/a/b/x.txt", "/a/b/c/x", "/b/x.txt"],
            ),
            ("/{**}", &["/", "/a", "/a/b"], &["", "*"]),
            ("/{*}", &["/a"], &["/", "/a/b", "//"]),
        ] {
            let template: PathTemplate = template.parse().unwrap();
            for path in matching {
                assert!(template.matches(path), "{template:?} {path}");
            }
            for path in other {
                assert!(!template.matches(path), "{template:?} {path}");
            }
        }
    }

    #[test]
    fn templates_that_istio_rejects_are_rejected() {
        for text in [
            "",
            "a/{*}",
            "/*/b/{*}",
            "/**/{*}",
            "/{**}/a/{*}",
            "/{**}/{**}",
            "/a{*}",
            "/{*}.txt",
            "/{**}.txt/*",
            "/{x}/{*}",
            "/{*",
        ] {
            assert!(text.parse::<PathTemplate>().is_err(), "{text}");
        }
        assert!(PathTemplate::is_template("/a{*}"));
        assert!(!PathTemplate::is_template("/a/*"));
    }

    #[test]
    fn literal_segments_can_be_mapped() {
        let template: PathTemplate = "/a/{*}/b/{**}/c".parse().unwrap();
        let upper = template.map_literal_text(|text| text.to_uppercase().into());
        assert!(upper.matches("/A/x/B/y/C") && !upper.matches("/a/x/b/y/c"));
    }
}
