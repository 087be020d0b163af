//! TokenReviews by the API server, which knows its signing keys, and which pods and accounts still exist.
//!
//! The API server is called as little as possible: not for tokens that cannot be valid ([`super::unverified`]), and not
//! more often than [`ReviewCache`] allows.

use std::{
    fmt,
    net::IpAddr,
    time::{Duration, Instant, SystemTime},
};

use aws_lc_rs::digest;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use kube::{Api, Client, api::PostParams};
use tokio::sync::Semaphore;

use super::{
    AuthenticateFuture, Authenticator, BoundPod, Caller, TokenError, parse_subject,
    reviews::{ReviewCache, TokenHash},
    unverified,
};

/// Maximum concurrent TokenReviews; further callers wait.
const MAX_CONCURRENT_REVIEWS: usize = 32;
/// Timeout of a token review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Path of the control plane's own service account token, which names the cluster's issuer.
const OWN_TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

const SERVICE_ACCOUNTS_GROUP: &str = "system:serviceaccounts";
const POD_NAME_EXTRA: &str = "authentication.kubernetes.io/pod-name";
const POD_UID_EXTRA: &str = "authentication.kubernetes.io/pod-uid";

/// Verifies tokens by TokenReviews.
pub struct TokenReviewer {
    api: Api<TokenReview>,
    audience: String,
    cache: ReviewCache,
    review_permits: Semaphore,
}

impl fmt::Debug for TokenReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenReviewer")
            .field("audience", &self.audience)
            .finish_non_exhaustive()
    }
}

impl TokenReviewer {
    /// Creates a reviewer that accepts only tokens for `audience`.
    pub fn new(client: Client, audience: &str) -> Self {
        // Outside of a cluster the file does not exist: then the first accepted token shows the
        // issuer.
        let own = std::fs::read_to_string(OWN_TOKEN_PATH).ok();
        let issuer = own.as_deref().and_then(unverified::issuer_of_own_token);
        Self {
            api: Api::all(client),
            audience: audience.to_owned(),
            cache: ReviewCache::new(issuer),
            review_permits: Semaphore::new(MAX_CONCURRENT_REVIEWS),
        }
    }

    async fn authenticate_token(&self, token: &str, source: IpAddr) -> Result<Caller, TokenError> {
        let issuer = unverified::unverified_issuer(token, &self.audience, SystemTime::now())?;
        let hash = hash_token(token);
        if let Some(known) = self.cache.cached_result(&hash, Instant::now()) {
            return known;
        }
        let _turn = self.cache.acquire_permit(source).await;
        // Another call with the same token may have been reviewed meanwhile.
        if let Some(known) = self.cache.cached_result(&hash, Instant::now()) {
            return known;
        }
        if !self.cache.may_review(source, &issuer, Instant::now()) {
            return Err(TokenError::TooManyReviews);
        }
        let answer = match tokio::time::timeout(REVIEW_TIMEOUT, self.review(token)).await {
            Err(_) => Err(unavailable_error("no answer in time")),
            Ok(Err(error)) => Err(error),
            Ok(Ok(review)) => parse_review(&review, &self.audience),
        };
        self.cache
            .record_result(hash, issuer, &answer, Instant::now());
        answer
    }

    async fn review(&self, token: &str) -> Result<TokenReview, TokenError> {
        let _slot = self.review_permits.acquire().await;
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: Some(vec![self.audience.clone()]),
            },
            ..TokenReview::default()
        };
        let response = self.api.create(&PostParams::default(), &review).await;
        response.map_err(|error| unavailable_error(&ambit_rt::ErrorChain(&error).to_string()))
    }
}

impl Authenticator for TokenReviewer {
    fn authenticate<'a>(&'a self, token: &'a str, source: IpAddr) -> AuthenticateFuture<'a> {
        Box::pin(self.authenticate_token(token, source))
    }
}

fn unavailable_error(why: &str) -> TokenError {
    TokenError::Unavailable(why.to_owned())
}

fn hash_token(token: &str) -> TokenHash {
    let mut hash = TokenHash::default();
    hash.copy_from_slice(digest::digest(&digest::SHA256, token.as_bytes()).as_ref());
    hash
}

/// Returns the caller that a TokenReview authenticated.
fn parse_review(review: &TokenReview, audience: &str) -> Result<Caller, TokenError> {
    let status = review.status.as_ref().ok_or(TokenError::InvalidSignature)?;
    if status.authenticated != Some(true) {
        let why = status.error.as_deref().unwrap_or("it is not valid");
        return Err(TokenError::Rejected(why.chars().take(300).collect()));
    }
    // A server without support for audiences would accept a token for any audience.
    if !status.audiences.iter().flatten().any(|one| one == audience) {
        return Err(TokenError::WrongAudience(audience.to_owned()));
    }
    let user = status.user.as_ref().ok_or(TokenError::InvalidSubject)?;
    if !user
        .groups
        .iter()
        .flatten()
        .any(|group| group == SERVICE_ACCOUNTS_GROUP)
    {
        return Err(TokenError::InvalidSubject);
    }
    let (namespace, service_account) = parse_subject(user.username.as_deref().unwrap_or_default())?;
    Ok(Caller {
        namespace: namespace.into(),
        service_account: service_account.into(),
        pod: user_extra(user, POD_NAME_EXTRA).map(|name| BoundPod {
            name: name.into(),
            uid: user_extra(user, POD_UID_EXTRA)
                .unwrap_or_default()
                .to_owned(),
        }),
    })
}

/// Returns the value of a key in the user's `extra` fields, if there is exactly one.
fn user_extra<'a>(user: &'a UserInfo, key: &str) -> Option<&'a str> {
    match user.extra.as_ref()?.get(key)?.as_slice() {
        [one] if !one.is_empty() => Some(one),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn accepted_review() -> Value {
        json!({
            "authenticated": true,
            "audiences": ["istio-ca"],
            "user": {
                "username": "system:serviceaccount:istio-system:ztunnel",
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "extra": {
                    "authentication.kubernetes.io/pod-name": ["zt-1"],
                    "authentication.kubernetes.io/pod-uid": ["u1"],
                },
            },
        })
    }

    fn parse_changed_review(change: impl FnOnce(&mut Value)) -> Result<Caller, TokenError> {
        let mut status = accepted_review();
        change(&mut status);
        let review = json!({"metadata": {}, "spec": {}, "status": status});
        parse_review(&serde_json::from_value(review).unwrap(), "istio-ca")
    }

    #[test]
    fn accepted_review_yields_account_and_pod() {
        let caller = parse_changed_review(|_| ()).unwrap();
        assert_eq!(caller.to_string(), "istio-system/ztunnel (pod zt-1)");
        assert_eq!(caller.pod.unwrap().uid, "u1");
    }

    #[test]
    fn review_of_another_audience_or_account_kind_is_rejected() {
        let set = |path: &'static str, value: Value| {
            parse_changed_review(move |status| *status.pointer_mut(path).unwrap() = value)
                .unwrap_err()
        };
        assert!(matches!(
            set("/authenticated", json!(false)),
            TokenError::Rejected(_)
        ));
        assert!(matches!(
            set("/audiences", json!(["other"])),
            TokenError::WrongAudience(_)
        ));
        assert_eq!(
            set("/user/groups", json!(["system:authenticated"])),
            TokenError::InvalidSubject
        );
        for name in [
            "admin",
            "system:node:n1",
            "system:serviceaccount:a",
            "system:serviceaccount:a:b:c",
            "system:serviceaccount::b",
            "x:system:serviceaccount:a:b",
        ] {
            assert_eq!(
                set("/user/username", json!(name)),
                TokenError::InvalidSubject,
                "{name}"
            );
        }
        let two = parse_changed_review(|status| {
            status["user"]["extra"]["authentication.kubernetes.io/pod-name"] = json!(["a", "b"]);
        });
        assert_eq!(two.unwrap().pod, None);
    }
}
