//! Client of the node agent's plugin socket, with retries while the agent is briefly unavailable.

use std::{
    io,
    net::IpAddr,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    config::{Config, LogLevel},
    error::{CniError, code},
    http::{self, Response},
    log, membership,
    result::PodAddress,
};

/// File name of the agent's socket in its run directory.
const SOCKET_NAME: &str = "pluginevent.sock";

/// Timeout of one response of the agent: enrolment takes milliseconds, but a proxy may be starting.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(25);

/// Timeout of a response about a pod that the membership file records as outside of the mesh: no state of the agent may
/// delay such pods. A healthy agent responds in a millisecond.
const OUTSIDE_RESPONSE_TIMEOUT: Duration = Duration::from_millis(400);

/// Initial and maximum delay between two attempts.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

/// Pod that is being started, for requests to the agent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pod<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
    /// Whether the pod's name is that of a component of the mesh, which must not wait for the agent.
    pub(crate) is_mesh_component: bool,
}

/// Body of `POST /cmdadd`, with the field names of Istio's plugin.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct CmdAddBody<'a> {
    netns: &'a str,
    pod_name: &'a str,
    pod_namespace: &'a str,
    #[serde(rename = "IPs")]
    ips: Option<Vec<CmdAddAddress<'a>>>,
    /// UID of the pod, which distinguishes it from an earlier pod of the same name. Istio's agent ignores this
    /// addition.
    #[serde(rename = "PodUID", skip_serializing_if = "str::is_empty")]
    pod_uid: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct CmdAddAddress<'a> {
    interface: Option<i64>,
    address: CmdAddNetwork,
    gateway: &'a str,
}

#[derive(Serialize)]
struct CmdAddNetwork {
    #[serde(rename = "IP")]
    ip: IpAddr,
    #[serde(rename = "Mask")]
    mask: String,
}

impl<'a> CmdAddBody<'a> {
    pub(crate) fn new(pod: Pod<'a>, netns: &'a str, addresses: Option<&'a [PodAddress]>) -> Self {
        let ips = addresses.map(|addresses| addresses.iter().map(event_address).collect());
        Self {
            netns,
            pod_name: pod.name,
            pod_namespace: pod.namespace,
            ips,
            pod_uid: pod.uid,
        }
    }
}

fn event_address(address: &PodAddress) -> CmdAddAddress<'_> {
    let bits = u128::MAX
        .checked_shl(128 - u32::from(address.prefix_length))
        .unwrap_or(0);
    let mask = match address.ip {
        IpAddr::V4(_) => {
            let bits = u32::MAX
                .checked_shl(32 - u32::from(address.prefix_length))
                .unwrap_or(0);
            base64(&bits.to_be_bytes())
        }
        IpAddr::V6(_) => base64(&bits.to_be_bytes()),
    };
    CmdAddAddress {
        interface: address.interface,
        address: CmdAddNetwork {
            ip: address.ip,
            mask,
        },
        gateway: &address.gateway,
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .fold(0u32, |group, byte| group << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let digit = (group >> (18 - 6 * index)) & 63;
            text.push(match DIGITS.get(digit as usize) {
                Some(digit) if index <= chunk.len() => char::from(*digit),
                _ => '=',
            });
        }
    }
    text
}

#[derive(Deserialize)]
struct MembershipBody {
    mesh: bool,
}

/// Client of the agent's socket in the run directory; requests are retried until the time `until`.
#[derive(Debug)]
pub(crate) struct Agent<'a> {
    config: &'a Config,
    socket: PathBuf,
    wait: Duration,
    deadline: Instant,
}

/// Failure of one request to the agent.
enum AttemptError {
    /// Failure after which the request may be retried, with the reason.
    Retriable(String),
    Permanent(CniError),
}

impl<'a> Agent<'a> {
    pub(crate) fn new(config: &'a Config) -> Self {
        let socket = config.cni_agent_run_dir.join(SOCKET_NAME);
        let wait = config.agent_wait();
        Self {
            config,
            socket,
            wait,
            deadline: Instant::now() + wait,
        }
    }

    /// Returns whether the pod belongs to the mesh. The timeout is short for a pod that the membership file records as
    /// outside; for all others it is the configured one.
    ///
    /// The membership file may be of any age: an agent that is available again reconciles what changed while it could
    /// not write the file, as it does for every running pod.
    pub(crate) fn is_member(&self, pod: Pod<'_>) -> Result<bool, CniError> {
        let path = format!(
            "/v1/membership?namespace={}&pod={}&uid={}",
            percent_encode(pod.namespace),
            percent_encode(pod.name),
            percent_encode(pod.uid)
        );
        self.retry_until_deadline(pod, || {
            let outside = self.recorded_membership(pod) == Some(false);
            let within = if outside {
                OUTSIDE_RESPONSE_TIMEOUT
            } else {
                RESPONSE_TIMEOUT
            };
            let failed = match self.send_request(&path, None, within) {
                Ok(Response { status: 200, body }) => {
                    return serde_json::from_str::<MembershipBody>(&body)
                        .map(|answer| answer.mesh)
                        .map_err(|error| {
                            AttemptError::Retriable(format!("unreadable answer: {error}"))
                        });
                }
                Ok(Response { status: 404, .. }) => return self.membership_from_file(pod),
                Ok(Response { status, body }) => format!("it answered {status}: {}", body.trim()),
                Err(error) => error.to_string(),
            };
            if outside {
                let line = format!(
                    "pod {}/{} starts outside the mesh, as recorded: {failed}",
                    pod.namespace, pod.name
                );
                log::log_line_to_file(self.config, LogLevel::Info, &line);
                return Ok(false);
            }
            Err(AttemptError::Retriable(failed))
        })
    }

    /// Returns whether the pod may belong to the mesh: false for the mesh's own components, otherwise as the membership
    /// file records; `None` if the file does not list the namespace.
    fn recorded_membership(&self, pod: Pod<'_>) -> Option<bool> {
        if pod.is_mesh_component {
            return Some(false);
        }
        let Config {
            cni_agent_run_dir,
            membership,
            ..
        } = self.config;
        membership::recorded_membership(cni_agent_run_dir, membership.as_deref(), pod.namespace)
    }

    /// Decides membership by the membership file alone, for agents that do not serve `/v1/membership`.
    fn membership_from_file(&self, pod: Pod<'_>) -> Result<bool, AttemptError> {
        self.recorded_membership(pod).ok_or_else(|| {
            AttemptError::Permanent(CniError::new(
                code::AGENT_FAILURE,
                format!(
                    "cannot determine whether pod {}/{} belongs to the mesh",
                    pod.namespace, pod.name
                ),
                format!(
                    "the agent at {} does not answer /v1/membership and {} has no membership.json \
                     that names the namespace; run ambit-agent",
                    self.socket.display(),
                    self.config.cni_agent_run_dir.display()
                ),
            ))
        })
    }

    /// Requests the agent to enrol the pod; returns once the pod's redirection is in place and its proxy listens.
    pub(crate) fn enrol(&self, pod: Pod<'_>, event: &CmdAddBody<'_>) -> Result<(), CniError> {
        let body = serde_json::to_string(event).map_err(|error| {
            CniError::new(
                code::AGENT_FAILURE,
                "cannot write the event",
                error.to_string(),
            )
        })?;
        self.retry_until_deadline(pod, || {
            match self.send_request("/cmdadd", Some(&body), RESPONSE_TIMEOUT) {
                Ok(Response { status: 200, .. }) => Ok(()),
                // Ambit's agent sends `Retry-After` if the cause may pass, for instance while a
                // proxy restarts.
                Ok(Response { status: 503, body }) => {
                    Err(AttemptError::Retriable(body.trim().to_owned()))
                }
                Ok(Response { status, body }) => Err(AttemptError::Permanent(CniError::new(
                    code::AGENT_FAILURE,
                    format!(
                        "the node agent could not enrol pod {}/{}",
                        pod.namespace, pod.name
                    ),
                    format!("it answered {status}: {}", body.trim()),
                ))),
                Err(error) => Err(AttemptError::Retriable(error.to_string())),
            }
        })
    }

    fn send_request(
        &self,
        path: &str,
        body: Option<&str>,
        within: Duration,
    ) -> io::Result<Response> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        http::request(&self.socket, path, body, left.clamp(RETRY_DELAY.0, within))
    }

    /// Repeats a request until it succeeds, fails for good, or times out.
    fn retry_until_deadline<T>(
        &self,
        pod: Pod<'_>,
        mut attempt: impl FnMut() -> Result<T, AttemptError>,
    ) -> Result<T, CniError> {
        let mut pause = RETRY_DELAY.0;
        let mut is_told = false;
        loop {
            let cause = match attempt() {
                Ok(outcome) => return Ok(outcome),
                Err(AttemptError::Permanent(error)) => return Err(error),
                Err(AttemptError::Retriable(cause)) => cause,
            };
            if Instant::now() + pause >= self.deadline {
                return Err(CniError::new(
                    code::TRY_AGAIN_LATER,
                    format!(
                        "pod {}/{} waits for the node agent",
                        pod.namespace, pod.name
                    ),
                    format!(
                        "no success at {} within {:?}, last: {cause}; is ambit-agent running on this node?",
                        self.socket.display(),
                        self.wait
                    ),
                ));
            }
            if pause == RETRY_DELAY.1 && !is_told {
                let line = format!(
                    "pod {}/{} waits for the node agent: {cause}",
                    pod.namespace, pod.name
                );
                log::log_line(self.config, LogLevel::Warn, &line);
                is_told = true;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(RETRY_DELAY.1);
        }
    }
}

/// Percent-encodes characters that are not allowed in a URI's query.
fn percent_encode(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_follows_the_contract() {
        let pod = Pod {
            namespace: "ns",
            name: "p",
            uid: "",
            is_mesh_component: false,
        };
        let address = |ip: &str, prefix| PodAddress {
            ip: ip.parse().unwrap(),
            prefix_length: prefix,
            gateway: "10.0.0.1".to_owned(),
            interface: Some(2),
        };
        let addresses = [address("10.0.0.5", 24), address("fd00::5", 64)];
        let event = CmdAddBody::new(pod, "/run/netns/x", Some(&addresses));
        assert_eq!(
            serde_json::to_string(&event).unwrap(),
            r#"{"Netns":"/run/netns/x","PodName":"p","PodNamespace":"ns","IPs":[{"Interface":2,"Address":{"IP":"10.0.0.5","Mask":"////AA=="},"Gateway":"10.0.0.1"},{"Interface":2,"Address":{"IP":"fd00::5","Mask":"//////////8AAAAAAAAAAA=="},"Gateway":"10.0.0.1"}]}"#
        );
        let event = CmdAddBody::new(Pod { uid: "u", ..pod }, "/x", None);
        assert_eq!(
            serde_json::to_string(&event).unwrap(),
            r#"{"Netns":"/x","PodName":"p","PodNamespace":"ns","IPs":null,"PodUID":"u"}"#
        );
    }

    #[test]
    fn masks_of_every_length_are_converted() {
        let mask = |ip: &str, prefix| {
            let ip = ip.parse().unwrap();
            let address = PodAddress {
                ip,
                prefix_length: prefix,
                gateway: String::new(),
                interface: None,
            };
            event_address(&address).address.mask
        };
        assert_eq!(mask("1.1.1.1", 0), "AAAAAA==");
        assert_eq!(mask("1.1.1.1", 32), "/////w==");
        assert_eq!(mask("::1", 0), "AAAAAAAAAAAAAAAAAAAAAA==");
        assert_eq!(mask("::1", 128), "/////////////////////w==");
    }

    #[test]
    fn names_are_escaped_in_the_query() {
        assert_eq!(percent_encode("a-b.c"), "a-b.c");
        assert_eq!(percent_encode("x&pod=y\r\n"), "x%26pod%3Dy%0D%0A");
    }
}
