//! Attachments (policies, tokens, limits, plugins) of the service to which a consumer route forwards, compared with
//! those already applied to the received request or connection.
//!
//! A consumer route gives its clients no more access than a direct request to that service. The service's policies
//! apply, and its rate limits count. Nothing is forwarded if the service has JWT rules or plugins that were not
//! applied.

use std::sync::Arc;

use ambit_model::AppProtocol;

use super::destination::Destination;
use crate::{
    attachment_lookup, attachments::Attachments, route_owner::RouteOwner, session::Session,
};

/// Finds the attachments of a consumer route's backend; `None` for other routes, or if this waypoint does not serve the
/// backend.
pub(crate) fn find(
    session: &Session,
    destination: &Destination,
    owner: RouteOwner,
) -> Option<Arc<Attachments>> {
    if owner == RouteOwner::Producer {
        return None;
    }
    if destination.is_requested_port(session) {
        return Some(session.attachments());
    }
    let waypoint = &session.shard.waypoint;
    let (name, port) = destination.port(session)?;
    waypoint.published.service(name)?;
    let found = attachment_lookup::service_attachments(waypoint, name, port, &session.caller);
    Some(Arc::new(found))
}

/// Whether the JWT rules among `attachments` also apply to the tunnel's target, so that their tokens have been
/// verified.
pub(crate) fn are_tokens_applied(session: &Session, attachments: &Attachments) -> bool {
    let all = session.shard.waypoint.published.authentications();
    all.were_policies_applied(attachments.services(), session.attachments().services())
}

/// Whether any plugin applies to requests with these attachments.
pub(crate) fn have_plugins(session: &Session, attachments: &Attachments) -> bool {
    let chain = session.shard.waypoint.published.extensions();
    chain.is_some_and(|chain| {
        let mut plugins = chain.plugins_for(attachments).into_iter();
        // A plugin's own calls would call the plugin again.
        plugins.any(|plugin| !session.caller.calls_on_behalf_of(&plugin.config.namespace))
    })
}

/// Whether every plugin that applies to requests with these attachments also applies to those for the session's target.
pub(crate) fn are_plugins_applied(session: &Session, attachments: &Attachments) -> bool {
    let Some(chain) = session.shard.waypoint.published.extensions() else {
        return true;
    };
    let applied = chain.plugins_for(&session.attachments());
    chain.plugins_for(attachments).iter().all(|plugin| {
        session.caller.calls_on_behalf_of(&plugin.config.namespace)
            || applied
                .iter()
                .any(|known| known.version_id == plugin.version_id)
    })
}

/// Whether a connection may be forwarded to the destination as opaque bytes: no JWT rule, rate limit or plugin there
/// requires HTTP, or the destination's port declares TCP or TLS.
pub(crate) fn may_be_opaque(
    session: &Session,
    destination: &Destination,
    owner: RouteOwner,
) -> bool {
    let Some(attachments) = find(session, destination, owner) else {
        return true;
    };
    let published = &session.shard.waypoint.published;
    let is_opaque = matches!(
        destination.app_protocol(session),
        AppProtocol::Tcp | AppProtocol::Tls
    );
    let limits = published.limits();
    is_opaque
        || !published
            .authentications()
            .needs_http(attachments.services())
            && !have_plugins(session, &attachments)
            && limits.is_none_or(|limits| limits.for_services(attachments.services()).is_empty())
}
