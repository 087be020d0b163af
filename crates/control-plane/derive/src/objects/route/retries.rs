//! Parsing of `retry` of a rule (GEP-1731).

use ambit_k8s_api::gateway::HttpRouteRetry;
use ambit_model::HttpRetry;

use crate::{
    objects::{durations, route::reader::RuleReader},
    problem::FieldError,
};

/// Default number of retries, as in Istio.
const DEFAULT_ATTEMPTS: i32 = 2;
/// Maximum number of retries; a greater number is reduced to it.
const MAX_ATTEMPTS: u32 = 64;

/// Parses the retry policy. Unsupported values make the rule unusable.
pub(crate) fn read(
    reader: &mut RuleReader<'_>,
    at: &str,
    from: &HttpRouteRetry,
) -> Result<HttpRetry, FieldError> {
    reader.note_unknown_fields(at, &from.other);
    let attempts = from.attempts.unwrap_or(DEFAULT_ATTEMPTS);
    let attempts = u32::try_from(attempts).ok().filter(|count| *count > 0);
    let attempts = attempts
        .ok_or_else(|| FieldError::new(format!("{at}.attempts"), "is not a number from 1 on"))?;
    if attempts > MAX_ATTEMPTS {
        let message = format!("{attempts} are too many: {MAX_ATTEMPTS} are made");
        reader.add_note(format!("{at}.attempts"), message);
    }
    let mut codes = Vec::new();
    for code in &from.codes {
        match u16::try_from(*code) {
            Ok(code @ 400..=599) => codes.push(code),
            _ => {
                let what = format!("{code} is not a status of an error, 400 to 599");
                reader.mark_unsupported(format!("{at}.codes"), &what);
            }
        }
    }
    codes.sort_unstable();
    codes.dedup();
    let backoff = from.backoff.as_deref().map(durations::read).transpose();
    let backoff = backoff.map_err(|error| FieldError::new(format!("{at}.backoff"), error))?;
    Ok(HttpRetry {
        codes,
        attempts: attempts.min(MAX_ATTEMPTS),
        backoff: backoff.flatten(),
    })
}
