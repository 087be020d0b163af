//! Authentication challenge of a registry (`WWW-Authenticate`, RFC 9110, 11.6.1).

/// Authentication challenge of a registry, by scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// Basic authentication with user and password.
    Basic,
    /// Bearer token, which a token server (`realm`) issues.
    Bearer { realm: String, service: String },
}

impl Challenge {
    /// Parses header values, and returns the first supported challenge, preferring bearer tokens to passwords.
    pub(super) fn select(headers: &[&str]) -> Option<Self> {
        let all: Vec<Self> = headers
            .iter()
            .flat_map(|text| parse_challenges(text))
            .collect();
        let bearer = all.iter().find(|one| **one != Self::Basic);
        bearer.or_else(|| all.first()).cloned()
    }
}

/// Parses the supported challenges in one header value.
fn parse_challenges(mut text: &str) -> Vec<Challenge> {
    let mut found = Vec::new();
    let mut scheme = String::new();
    let mut parameters: Vec<(String, String)> = Vec::new();
    loop {
        text = text.trim_start_matches([' ', '\t', ',']);
        let end = text.find([' ', '\t', ',', '=']).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        if word.is_empty() {
            break;
        }
        let after = rest.trim_start_matches([' ', '\t']);
        if let Some(value) = after.strip_prefix('=') {
            let Some((value, rest)) = parse_value(value.trim_start_matches([' ', '\t'])) else {
                break;
            };
            parameters.push((word.to_ascii_lowercase(), value));
            text = rest;
        } else {
            found.extend(to_challenge(&scheme, &mut parameters));
            scheme = word.to_ascii_lowercase();
            text = rest;
        }
    }
    found.extend(to_challenge(&scheme, &mut parameters));
    found
}

fn to_challenge(scheme: &str, parameters: &mut Vec<(String, String)>) -> Option<Challenge> {
    let parameters = std::mem::take(parameters);
    let get = |name: &str| {
        let mut all = parameters.iter();
        all.find(|(of, _)| of == name)
            .map(|(_, value)| value.clone())
    };
    match scheme {
        "basic" => Some(Challenge::Basic),
        "bearer" => Some(Challenge::Bearer {
            realm: get("realm")?,
            service: get("service").unwrap_or_default(),
        }),
        _ => None,
    }
}

/// Parses a quoted or unquoted parameter value, and returns it with the rest of the text.
fn parse_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        return Some((value.to_owned(), rest));
    };
    let (mut value, mut is_escaped) = (String::new(), false);
    for (place, one) in quoted.char_indices() {
        match one {
            _ if is_escaped => {
                value.push(one);
                is_escaped = false;
            }
            '\\' => is_escaped = true,
            '"' => return Some((value, quoted.get(place + 1..)?)),
            _ => value.push(one),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let bearer = |realm: &str, service: &str| {
            Some(Challenge::Bearer {
                realm: realm.to_owned(),
                service: service.to_owned(),
            })
        };
        for (text, is) in [
            ("Basic realm=\"a registry\"", Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            (
                "Bearer realm=\"https://r/token\",service=\"a, b\",scope=\"repository:a/b:pull,push\"",
                bearer("https://r/token", "a, b"),
            ),
            (
                "BEARER service = r , realm=https://r/token",
                bearer("https://r/token", "r"),
            ),
            (
                "Basic realm=\"x\", Bearer realm=\"https://r/\\\"t\"",
                bearer("https://r/\"t", ""),
            ),
            ("Bearer service=\"r\"", None),
            ("Bearer realm=\"never ends", None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(Challenge::select(&[text]), is, "{text}");
        }
        let both = Challenge::select(&["Basic realm=x", "Bearer realm=\"https://r/\""]);
        assert_eq!(both, bearer("https://r/", ""));
    }

    #[test]
    fn any_registry_challenge_is_parsed_to_its_end() {
        let alphabet = ['b', '=', '"', '\\', ' ', ',', 'ü'];
        let mut texts = vec![String::new()];
        for _ in 0..5 {
            let longer = |text: &String| alphabet.map(|one| format!("{text}{one}"));
            texts = texts.iter().flat_map(longer).collect();
            for text in &texts {
                let text = format!("Bearer realm={text}");
                if let Some(Challenge::Bearer { realm, .. }) = Challenge::select(&[&text]) {
                    assert!(realm.len() <= text.len(), "{text:?} {realm:?}");
                }
            }
        }
    }
}
