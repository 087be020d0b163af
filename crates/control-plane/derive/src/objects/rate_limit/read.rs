//! Parsing of the limits of a RateLimit.

use std::time::Duration;

use ambit_k8s_api::{
    ambit::{GlobalRateLimit, LocalRateLimit, RateLimitEntry, RateLimitKey},
    gateway::HttpRouteMatch,
};
use ambit_model::{
    self as model, ArcStr, GlobalLimit, LimitDescriptor, LimitKey, LimitValue, LocalLimit,
};

use crate::{
    objects::{
        durations,
        route::reader::{RuleReader, is_token},
    },
    problem::FieldError,
};

/// Maximum number of limits, of matches and `by` entries of one limit, of descriptors, and of entries of one
/// descriptor.
const MAX_LIST_LENGTH: usize = 16;
/// Maximum length of a descriptor's key or value, in bytes.
const MAX_DESCRIPTOR_TEXT_BYTES: usize = 256;
/// Maximum number of requests of a limit, and maximum burst.
const MAX_REQUESTS: u32 = 1_000_000_000;
/// Maximum period of a limit (`per`).
const MAX_PERIOD: Duration = Duration::from_secs(24 * 3600);
const MAX_TIMEOUT: Duration = Duration::from_secs(10);
/// Default maximum number of buckets of a local limit.
const DEFAULT_BUCKETS: i64 = 10_000;
const MAX_BUCKETS: u32 = 1_000_000;
/// Default timeout of a call to the rate-limit service, as in Envoy.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(20);
const MAX_HITS: u32 = 1_000_000;

pub(crate) fn parse_local_limits(from: &[LocalRateLimit]) -> Result<Vec<LocalLimit>, FieldError> {
    check_count("spec.local", from.len())?;
    let all = from.iter().enumerate();
    all.map(|(index, one)| parse_local_limit(one, &format!("spec.local[{index}]")))
        .collect()
}

fn parse_local_limit(from: &LocalRateLimit, at: &str) -> Result<LocalLimit, FieldError> {
    let number = |name: &str, of: i64, most: u32| parse_number(&format!("{at}.{name}"), of, most);
    check_count(&format!("{at}.by"), from.by.len())?;
    let by = from.by.iter().enumerate();
    let by = by.map(|(index, one)| parse_bucket_key(one, &format!("{at}.by[{index}]")));
    Ok(LocalLimit {
        matches: parse_matches(&from.matches, at)?,
        bucket_keys: by.collect::<Result<_, _>>()?,
        requests: number("requests", from.requests, MAX_REQUESTS)?,
        per: parse_bounded_duration(&format!("{at}.per"), &from.per, MAX_PERIOD)?,
        burst: number("burst", from.burst.unwrap_or(from.requests), MAX_REQUESTS)?,
        buckets: number(
            "buckets",
            from.buckets.unwrap_or(DEFAULT_BUCKETS),
            MAX_BUCKETS,
        )?,
    })
}

/// Parses `spec.global`, without resolving the rate-limit service.
pub(crate) fn parse_global_limit(from: &GlobalRateLimit) -> Result<GlobalLimit, FieldError> {
    const AT: &str = "spec.global";
    if from.domain.is_empty() || from.domain.len() > MAX_DESCRIPTOR_TEXT_BYTES {
        let message = format!("a name of up to {MAX_DESCRIPTOR_TEXT_BYTES} bytes is needed");
        return Err(FieldError::new(format!("{AT}.domain"), message));
    }
    let at = format!("{AT}.descriptors");
    check_count(&at, from.descriptors.len())?;
    if from.descriptors.is_empty() {
        return Err(FieldError::new(at, "a descriptor is needed"));
    }
    let mut descriptors = Vec::new();
    for (index, one) in from.descriptors.iter().enumerate() {
        let at = format!("{at}[{index}]");
        check_count(&format!("{at}.entries"), one.entries.len())?;
        if one.entries.is_empty() {
            return Err(FieldError::new(format!("{at}.entries"), "one is needed"));
        }
        let entries = one.entries.iter().enumerate();
        let entries = entries
            .map(|(index, one)| parse_descriptor_entry(one, &format!("{at}.entries[{index}]")));
        descriptors.push(LimitDescriptor {
            matches: parse_matches(&one.matches, &at)?,
            entries: entries.collect::<Result<_, _>>()?,
        });
    }
    let timeout = from.timeout.as_deref();
    let timeout =
        timeout.map(|text| parse_bounded_duration(&format!("{AT}.timeout"), text, MAX_TIMEOUT));
    Ok(GlobalLimit {
        target: Err("it is not looked for".into()),
        domain: from.domain.as_str().into(),
        timeout: timeout.transpose()?.unwrap_or(DEFAULT_TIMEOUT),
        hits: parse_number(&format!("{AT}.hits"), from.hits.unwrap_or(1), MAX_HITS)?,
        descriptors,
    })
}

fn parse_descriptor_entry(
    from: &RateLimitEntry,
    at: &str,
) -> Result<(ArcStr, LimitValue), FieldError> {
    if from.key.is_empty() || from.key.len() > MAX_DESCRIPTOR_TEXT_BYTES {
        let message = format!("a key of up to {MAX_DESCRIPTOR_TEXT_BYTES} bytes is needed");
        return Err(FieldError::new(format!("{at}.key"), message));
    }
    let given = (&from.source, &from.header, &from.request);
    let value = match (&from.value, given) {
        (Some(text), (None, None, None))
            if !text.is_empty() && text.len() <= MAX_DESCRIPTOR_TEXT_BYTES =>
        {
            LimitValue::Text(text.as_str().into())
        }
        (Some(_), (None, None, None)) => {
            let message = format!("a value of up to {MAX_DESCRIPTOR_TEXT_BYTES} bytes is needed");
            return Err(FieldError::new(format!("{at}.value"), message));
        }
        (None, given) if given != (&None, &None, &None) => {
            LimitValue::Attribute(parse_key(given, at)?)
        }
        _ => {
            let message = "one of value, source, header and request is needed";
            return Err(FieldError::new(at, message));
        }
    };
    Ok((from.key.as_str().into(), value))
}

fn parse_bucket_key(from: &RateLimitKey, at: &str) -> Result<LimitKey, FieldError> {
    parse_key((&from.source, &from.header, &from.request), at)
}

fn parse_key(
    given: (&Option<String>, &Option<String>, &Option<String>),
    at: &str,
) -> Result<LimitKey, FieldError> {
    let unknown = |name: &str, of: &str, known: &str| {
        let message = format!("{of:?} is none of {known}");
        FieldError::new(format!("{at}.{name}"), message)
    };
    match given {
        (Some(source), None, None) => match source.as_str() {
            "Principal" => Ok(LimitKey::Principal),
            "Namespace" => Ok(LimitKey::Namespace),
            "Address" => Ok(LimitKey::Address),
            other => Err(unknown("source", other, "Principal, Namespace and Address")),
        },
        (None, Some(name), None) if is_token(name) => {
            Ok(LimitKey::Header(ArcStr::from(name.to_ascii_lowercase())))
        }
        (None, Some(name), None) => {
            let message = format!("{name:?} is no name of a header");
            Err(FieldError::new(format!("{at}.header"), message))
        }
        (None, None, Some(part)) => match part.as_str() {
            "Method" => Ok(LimitKey::Method),
            "Path" => Ok(LimitKey::Path),
            other => Err(unknown("request", other, "Method and Path")),
        },
        _ => Err(FieldError::new(
            at,
            "one of source, header and request is needed",
        )),
    }
}

/// Parses the request matches of a limit. An unsupported part is an error: without it the limit would count other
/// requests than intended.
fn parse_matches(
    from: &[HttpRouteMatch],
    at: &str,
) -> Result<Vec<model::HttpRouteMatch>, FieldError> {
    check_count(&format!("{at}.matches"), from.len())?;
    let mut notes = Vec::new();
    let mut reader = RuleReader::new(&mut notes);
    let mut read = Vec::new();
    for (index, one) in from.iter().enumerate() {
        read.push(reader.parse_match(one, &format!("{at}.matches[{index}]"))?);
    }
    match reader.take_unsupported() {
        None => Ok(read),
        Some(unsupported) => {
            let (field, message) = unsupported.text.split_once(": ").unwrap_or((at, ""));
            Err(FieldError::new(field, message))
        }
    }
}

fn check_count(at: &str, count: usize) -> Result<(), FieldError> {
    if count > MAX_LIST_LENGTH {
        let message = format!("{count} are too many: at most {MAX_LIST_LENGTH}");
        return Err(FieldError::new(at, message));
    }
    Ok(())
}

fn parse_number(at: &str, of: i64, most: u32) -> Result<u32, FieldError> {
    let number = u32::try_from(of).ok();
    let number = number.filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| FieldError::new(at, format!("{of} is not from 1 to {most}")))
}

fn parse_bounded_duration(at: &str, text: &str, longest: Duration) -> Result<Duration, FieldError> {
    let read = durations::read(text).map_err(|message| FieldError::new(at, message))?;
    let read = read.filter(|time| *time <= longest);
    read.ok_or_else(|| {
        let most = longest.as_secs();
        FieldError::new(at, format!("{text:?} is not from 1ms to {most}s"))
    })
}
