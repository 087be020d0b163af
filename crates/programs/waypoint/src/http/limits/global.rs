//! What a rate-limit service is asked, and what it answers.

use ambit_l7::route::RouteRequest;
use ambit_model::{GlobalLimit, LimitValue};
use ambit_wire::rate_limit_service::{Answer, AnswerError, Question, SHOULD_RATE_LIMIT_PATH};
use http::Request;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::value;
use crate::{
    circle::Passed,
    http::{
        authorizer::{AskError, unary},
        form::Form,
    },
    rate_limits::Limiter,
    session::Session,
};

/// A service that has not decided.
#[derive(Debug, thiserror::Error)]
pub(super) enum LimitError {
    #[error("there is no service to ask: {0}")]
    Nobody(ambit_model::ArcStr),
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

impl LimitError {
    /// For metrics.
    pub(super) fn outcome(&self) -> &'static str {
        match self {
            Self::Nobody(_) => "nobody",
            Self::Ask(error) => error.outcome(),
            Self::Answer(AnswerError::Undecided(_)) => "undecided",
            Self::Answer(AnswerError::Malformed(_)) => "malformed",
        }
    }
}

/// What a request is said to be; `None` if there is nothing to say of it.
pub(super) fn question(
    session: &Session,
    (limiter, global): (&Limiter, &GlobalLimit),
    (asked, request, form): (&RouteRequest<'_>, &Request<Incoming>, &Form),
) -> Option<Question> {
    let entry = |(key, of): &(ambit_model::ArcStr, LimitValue)| {
        let value = match of {
            LimitValue::Text(text) => text.to_string(),
            LimitValue::Of(key) => {
                let value = value(session, request, form, key)?;
                String::from_utf8_lossy(&value).into_owned()
            }
        };
        Some((key.to_string(), value))
    };
    let descriptors = limiter.descriptors(global, asked);
    let descriptors = descriptors.filter_map(|one| one.entries.iter().map(entry).collect());
    let descriptors: Vec<Vec<_>> = descriptors.collect();
    (!descriptors.is_empty()).then(|| Question {
        domain: global.domain.to_string(),
        descriptors,
        hits: global.hits,
    })
}

pub(super) async fn ask(
    session: &Session,
    (global, question): (&GlobalLimit, Question),
    passed: Passed,
) -> Result<Answer, LimitError> {
    let (service, port) = match &global.place {
        Ok((service, port)) => (service, *port),
        Err(why) => return Err(LimitError::Nobody(why.clone())),
    };
    let _ask = session.shard.asks.begin().ok_or(AskError::TooMany)?;
    let call = (SHOULD_RATE_LIMIT_PATH, question.encode(), global.timeout);
    let asking = unary(session, (service, port), call, passed);
    let answer = timeout(global.timeout, asking).await;
    let message = answer.map_err(|_| AskError::Late)??;
    Ok(Answer::decode(&message)?)
}
