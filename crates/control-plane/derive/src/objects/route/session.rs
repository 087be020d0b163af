//! Parsing of `sessionPersistence` of a rule, which sends the requests of a session to one endpoint.

use ambit_k8s_api::gateway::SessionPersistence;
use ambit_model::{ArcStr, HttpSession, RouteName, is_reserved_header};

use crate::{
    objects::{
        durations,
        route::reader::{RuleReader, is_token},
    },
    problem::FieldError,
};

/// Maximum length of a session name, as in the Gateway API.
const MAX_SESSION_NAME_LENGTH: usize = 128;

impl RuleReader<'_> {
    /// Parses `sessionPersistence` of a rule; a session without a name gets one by [`name_session`].
    pub(crate) fn parse_session(
        &mut self,
        at: &str,
        from: &SessionPersistence,
    ) -> Result<Option<HttpSession>, FieldError> {
        self.note_unknown_fields(at, &from.other);
        let error =
            |field: &str, message: String| FieldError::new(format!("{at}.{field}"), message);
        let is_header = match from.type_.as_deref() {
            None | Some("Cookie") => false,
            Some("Header") => true,
            Some(other) => {
                let what = format!("{other:?} is not supported");
                self.mark_unsupported(format!("{at}.type"), &what);
                return Ok(None);
            }
        };
        let name = from.session_name.as_deref().unwrap_or_default();
        if !name.is_empty() && (name.len() > MAX_SESSION_NAME_LENGTH || !is_token(name)) {
            let message = format!("{name:?} is no name of a cookie or header");
            return Err(error("sessionName", message));
        }
        if is_header && is_reserved_header(name) {
            let message = format!("{name:?} is not the routes' to set");
            return Err(error("sessionName", message));
        }
        let timeout = |field: &str, text: Option<&str>| {
            let read = text.map(durations::read).transpose();
            Ok(read.map_err(|message| error(field, message))?.flatten())
        };
        let absolute_timeout = timeout("absoluteTimeout", from.absolute_timeout.as_deref())?;
        let idle_timeout = timeout("idleTimeout", from.idle_timeout.as_deref())?;
        let mut is_permanent = false;
        if let Some(cookie) = &from.cookie_config {
            let at = format!("{at}.cookieConfig");
            self.note_unknown_fields(&at, &cookie.other);
            match cookie.lifetime_type.as_deref() {
                None | Some("Session") => {}
                Some("Permanent") => is_permanent = true,
                Some(other) => {
                    let what = format!("{other:?} is not supported");
                    self.mark_unsupported(format!("{at}.lifetimeType"), &what);
                    return Ok(None);
                }
            }
            if is_header {
                self.add_note(at, "has no effect on a header");
            }
        }
        if is_permanent && absolute_timeout.is_none() {
            let message = "is needed where the cookie's lifetimeType is Permanent".to_owned();
            return Err(error("absoluteTimeout", message));
        }
        Ok(Some(HttpSession {
            name: match is_header {
                true => ArcStr::from(name.to_ascii_lowercase()),
                false => name.into(),
            },
            is_header,
            is_permanent: is_permanent && !is_header,
            absolute_timeout,
            idle_timeout,
        }))
    }
}

/// Gives an unnamed session a unique name, made of its route and rule.
pub(crate) fn name_session(session: &mut HttpSession, route: &RouteName, index: usize) {
    if !session.name.is_empty() {
        return;
    }
    let RouteName {
        namespace, name, ..
    } = route;
    let prefix = if session.is_header { "x-" } else { "" };
    session.name = arcstr::format!("{prefix}ambit-session-{namespace}-{name}-{index}");
}
