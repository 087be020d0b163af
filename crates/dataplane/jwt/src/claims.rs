//! Claims of a valid token.

use std::borrow::Cow;

use ambit_model::ArcStr;

use crate::json::Json;

/// Claims whose text is always split at spaces into a list of words.
const SPACE_SEPARATED_CLAIMS: [&str; 2] = ["scope", "permission"];

/// Claims of a verified token.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims {
    payload: Json,
    /// Names of further claims whose text is split at spaces into a list of words.
    space_separated: Vec<ArcStr>,
}

/// Types of claim values that can match: text only, or also numbers and booleans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparableValues {
    /// Only string values match, as a whole.
    StringsOnly,
    /// Numbers and booleans match by their JSON text. Strings match as a whole, and by each word between commas or
    /// spaces.
    AllScalars,
}

impl Claims {
    pub(crate) fn new(all: Json, words: &[ArcStr]) -> Self {
        let words = words.to_vec();
        Self {
            payload: all,
            space_separated: words,
        }
    }

    /// Parses claims without a token, for tests and fuzzing. `words` names claims that are lists of words.
    ///
    /// # Errors
    ///
    /// When the text is not JSON that a token may contain.
    pub fn parse(text: &[u8], words: &[ArcStr]) -> Result<Self, serde_json::Error> {
        Json::parse(text).map(|all| Self::new(all, words))
    }

    /// Returns issuer and subject (`iss`, `sub`); `None` unless both are present.
    pub fn principal(&self) -> Option<(&str, &str)> {
        let text = |name: &str| {
            self.payload
                .get(name)?
                .as_text()
                .filter(|text| !text.is_empty())
        };
        Some((text("iss")?, text("sub")?))
    }

    /// Returns the issuer claim (`iss`).
    pub fn issuer(&self) -> Option<&str> {
        self.payload.get("iss")?.as_text()
    }

    /// Returns the party that the token was issued to (`azp`).
    pub fn authorized_presenter(&self) -> Option<&str> {
        self.payload.get("azp")?.as_text()
    }

    /// Whether `matches` is true for one of the audiences (`aud`).
    pub fn any_audience_matches(&self, matches: impl Fn(&str) -> bool) -> bool {
        any_text_matches(
            self.payload.get("aud"),
            ComparableValues::StringsOnly,
            &matches,
        )
    }

    /// Whether `matches` is true for the claim at this path of names, or for an element of the claim's list.
    pub fn any_value_matches(
        &self,
        path: &[ArcStr],
        values: ComparableValues,
        matches: impl Fn(&str) -> bool,
    ) -> bool {
        let mut claim = Some(&self.payload);
        for name in path {
            claim = claim.and_then(|claim| claim.get(name));
        }
        let is_words = |name: &ArcStr| {
            SPACE_SEPARATED_CLAIMS.contains(&name.as_str())
                || self.space_separated.iter().any(|one| one == name)
        };
        if let (Some(Json::Text(text)), [name]) = (claim, path)
            && is_words(name)
        {
            let whole = values == ComparableValues::AllScalars && matches(text);
            return whole || text.split_ascii_whitespace().any(matches);
        }
        any_text_matches(claim, values, &matches)
    }

    /// Returns a claim as a header value: the claim of this name, or the nested claim whose path is joined by dots.
    pub(crate) fn header_text(&self, name: &str) -> Option<Cow<'_, str>> {
        let nested = || {
            let mut parts = name.split('.');
            parts.try_fold(&self.payload, |claim, part| claim.get(part))
        };
        scalar_text(
            self.payload.get(name).or_else(nested)?,
            ComparableValues::AllScalars,
        )
    }
}

fn scalar_text(value: &Json, values: ComparableValues) -> Option<Cow<'_, str>> {
    match (value, values) {
        (Json::Text(text), _) => Some(text.as_str().into()),
        (Json::Number(number), ComparableValues::AllScalars) => Some(number.to_string().into()),
        (Json::Bool(truth), ComparableValues::AllScalars) => Some(truth.to_string().into()),
        _ => None,
    }
}

fn any_text_matches(
    claim: Option<&Json>,
    values: ComparableValues,
    matches: &impl Fn(&str) -> bool,
) -> bool {
    let one = |value: &Json| {
        scalar_text(value, values).is_some_and(|text| {
            let separates = |c: char| c == ',' || c.is_ascii_whitespace();
            matches(&text)
                || values == ComparableValues::AllScalars && text.split(separates).any(matches)
        })
    };
    match claim {
        Some(Json::List(all)) => all.iter().any(one),
        Some(value) => one(value),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_found_by_their_path_and_lists_by_each_value() {
        let text = br#"{"iss":"i","sub":"s","aud":["a","b"],"n":5,"t":true,"groups":["x","y"],
            "scope":"read write","roles":"one two","deep":{"er":{"still":"z","list":[1,"q"]}},
            "a.b":"dotted","a":{"b":"nested","c":"inner"}}"#;
        let claims = Claims::parse(text, &["roles".into()]).unwrap();
        let has = |path: &[&str], values, value: &str| {
            let path: Vec<ArcStr> = path.iter().map(|one| ArcStr::from(*one)).collect();
            claims.any_value_matches(&path, values, |text| text == value)
        };
        for (path, value) in [
            (&["groups"][..], "y"),
            (&["scope"], "write"),
            (&["roles"], "two"),
            (&["deep", "er", "still"], "z"),
            (&["deep", "er", "list"], "q"),
            (&["a.b"], "dotted"),
            (&["a", "b"], "nested"),
        ] {
            assert!(has(path, ComparableValues::StringsOnly, value), "{path:?}");
        }
        for (path, value) in [
            (&["n"][..], "5"),
            (&["t"], "true"),
            (&["scope"], "read write"),
            (&["deep", "er", "list"], "1"),
        ] {
            assert!(!has(path, ComparableValues::StringsOnly, value), "{path:?}");
            assert!(has(path, ComparableValues::AllScalars, value), "{path:?}");
        }
        assert!(!has(&["deep"], ComparableValues::AllScalars, "z"));
        assert_eq!(claims.principal(), Some(("i", "s")));
        assert!(claims.any_audience_matches(|one| one == "b"));
        let header = |name| claims.header_text(name).map(Cow::into_owned);
        assert_eq!(header("a.b").as_deref(), Some("dotted"));
        assert_eq!(header("a.c").as_deref(), Some("inner"));
        assert_eq!(header("n").as_deref(), Some("5"));
        assert_eq!(header("groups"), None);
    }
}
