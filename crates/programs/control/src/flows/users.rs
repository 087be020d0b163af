//! Authentication and authorization of readers of flow events by the API server.

use std::{collections::BTreeMap, time::Duration};

use ambit_k8s_api::is_dns_name;
use ambit_rt::ErrorChain;
use futures_util::future::try_join_all;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use tokio::{sync::Semaphore, time::timeout};

/// Maximum concurrent checks of users; further checks wait.
const MAX_CONCURRENT_CHECKS: usize = 16;
/// Timeout of a check of a user, including its time in the queue.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a token, in bytes.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// Maximum length of a namespace's name, in bytes.
const MAX_NAME_BYTES: usize = 63;
/// Maximum number of namespaces in one request, each of which costs the API server a SubjectAccessReview.
const MAX_NAMESPACES: usize = 32;

/// Reason why a user may not read flow events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Malformed parameter of the request.
    #[error("{0}")]
    MalformedParameter(String),
    /// The request has no token, or an unreadable one.
    #[error("the header {} has no token", ambit_flow::USER_TOKEN_HEADER)]
    NoToken,
    /// The API server rejects the user's token.
    #[error("the API server does not accept the token")]
    RejectedToken,
    /// Namespaces whose flow events the user may not read; empty for the whole mesh.
    #[error("{}", format_missing_rights(.0))]
    MissingRights(Vec<String>),
    /// The API server does not respond.
    #[error("the API server cannot be asked at present: try again")]
    Unavailable,
    /// Too many requests or readers.
    #[error("{0}")]
    TooManyRequests(&'static str),
}

fn format_missing_rights(namespaces: &[String]) -> String {
    let (group, resource) = ambit_flow::FLOWS_RESOURCE;
    match namespaces {
        [] => format!(
            "reading the flow events of all namespaces takes the right to get {resource}.{group} in all; name namespaces \
             with ?namespace=NAME"
        ),
        some => format!(
            "no right to get {resource}.{group} in {}; the ClusterRoles view, edit and admin have it",
            some.join(", ")
        ),
    }
}

/// A user's access to flow events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRights {
    /// Name of the authenticated user.
    pub user: String,
    /// Whether the user may read only the requested namespaces.
    pub is_confined_to_namespaces: bool,
}

/// Authenticates and authorizes users by reviews of the API server.
pub struct UserAuthorizer {
    client: Client,
    check_permits: Semaphore,
}

impl std::fmt::Debug for UserAuthorizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserAuthorizer").finish_non_exhaustive()
    }
}

impl UserAuthorizer {
    /// Creates an authenticator and authorizer that calls the API server of `client`.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            check_permits: Semaphore::new(MAX_CONCURRENT_CHECKS),
        }
    }

    /// Returns the access of the token's user to the flow events of `namespaces`, or of the whole mesh if empty.
    ///
    /// # Errors
    ///
    /// When the user may not read one of them, or the API server fails.
    pub async fn authorize(
        &self,
        token: &str,
        namespaces: &[String],
    ) -> Result<UserRights, AccessError> {
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            return Err(AccessError::NoToken);
        }
        if namespaces.len() > MAX_NAMESPACES {
            let why = format!("more than {MAX_NAMESPACES} namespaces");
            return Err(AccessError::MalformedParameter(why));
        }
        if let Some(wrong) = namespaces
            .iter()
            .find(|name| !is_dns_name(name, MAX_NAME_BYTES))
        {
            return Err(AccessError::MalformedParameter(format!(
                "{wrong:?} is no namespace"
            )));
        }
        let decided = timeout(CHECK_TIMEOUT, self.review_rights(token, namespaces)).await;
        decided.map_err(|_elapsed| AccessError::Unavailable)?
    }

    async fn review_rights(
        &self,
        token: &str,
        namespaces: &[String],
    ) -> Result<UserRights, AccessError> {
        let _slot = self.check_permits.acquire().await;
        let user = self.authenticate_user(token).await?;
        let name = user.username.clone().unwrap_or_default();
        if self.may_read(&user, None).await? {
            return Ok(UserRights {
                user: name,
                is_confined_to_namespaces: false,
            });
        }
        let checks = namespaces
            .iter()
            .map(|namespace| self.may_read(&user, Some(namespace)));
        let allowed = try_join_all(checks).await?;
        let denied = namespaces.iter().zip(allowed);
        let denied = denied.filter(|(_, is_allowed)| !is_allowed);
        let denied: Vec<_> = denied.map(|(namespace, _)| namespace.clone()).collect();
        if namespaces.is_empty() || !denied.is_empty() {
            return Err(AccessError::MissingRights(denied));
        }
        Ok(UserRights {
            user: name,
            is_confined_to_namespaces: true,
        })
    }

    /// Returns the user whom the API server authenticates by the token.
    async fn authenticate_user(&self, token: &str) -> Result<UserInfo, AccessError> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: None,
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let review = api.create(&PostParams::default(), &review).await;
        let status = review.map_err(|error| unavailable_error(&error))?.status;
        let status = status.filter(|status| status.authenticated == Some(true));
        let user = status.and_then(|status| status.user);
        user.filter(|user| user.username.as_ref().is_some_and(|name| !name.is_empty()))
            .ok_or(AccessError::RejectedToken)
    }

    /// Returns whether a user may get the flow events of a namespace; `None` stands for all namespaces.
    async fn may_read(
        &self,
        user: &UserInfo,
        namespace: Option<&str>,
    ) -> Result<bool, AccessError> {
        let (group, resource) = ambit_flow::FLOWS_RESOURCE;
        let extra = user.extra.clone().unwrap_or_default();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username.clone(),
                uid: user.uid.clone(),
                groups: user.groups.clone(),
                extra: Some(BTreeMap::from_iter(extra)),
                resource_attributes: Some(ResourceAttributes {
                    group: Some(group.to_owned()),
                    resource: Some(resource.to_owned()),
                    verb: Some("get".to_owned()),
                    namespace: namespace.map(ToOwned::to_owned),
                    ..ResourceAttributes::default()
                }),
                non_resource_attributes: None,
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = api.create(&PostParams::default(), &review).await;
        let status = review.map_err(|error| unavailable_error(&error))?.status;
        Ok(status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }
}

fn unavailable_error(error: &kube::Error) -> AccessError {
    let error = ErrorChain(error);
    tracing::warn!(%error, "the API server cannot be asked who may read flow events");
    AccessError::Unavailable
}
