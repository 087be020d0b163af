//! Percentages and fractions of requests in the Gateway API (`percent`, `fraction`).

use ambit_k8s_api::gateway::Fraction;
use ambit_model::RequestFraction;

use crate::problem::FieldError;

/// Parses the share of requests from `percent` or `fraction`; all requests if both are unset.
pub(crate) fn read(
    percent: Option<i32>,
    fraction: Option<&Fraction>,
    at: &str,
) -> Result<RequestFraction, FieldError> {
    let (field, of, all) = match (percent, fraction) {
        (Some(_), Some(_)) => {
            let message = "percent and fraction exclude each other";
            return Err(FieldError::new(at, message));
        }
        (Some(percent), None) => ("percent", percent, 100),
        (
            None,
            Some(Fraction {
                numerator,
                denominator,
            }),
        ) => ("fraction", *numerator, denominator.unwrap_or(100)),
        (None, None) => ("percent", 100, 100),
    };
    let share = u32::try_from(of).ok().zip(u32::try_from(all).ok());
    let share = share.filter(|(of, all)| of <= all && *all > 0);
    let (numerator, denominator) = share.ok_or_else(|| {
        let message = format!("{of} of {all} is no share");
        FieldError::new(format!("{at}.{field}"), message)
    })?;
    Ok(RequestFraction {
        numerator,
        denominator,
    })
}
