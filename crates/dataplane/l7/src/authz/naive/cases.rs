//! Generates policies and requests from bytes, with few and short words, so that they often match.

use ambit_model::{
    HttpAction, HttpAttribute, HttpCondition, HttpOperation, HttpPolicy, HttpRule, HttpSource,
    HttpValue, Identity, NamespacedHostname, PathPattern, PathTemplate, PolicyKey,
    ServiceAccountMatch, StringMatch,
};
use http::{HeaderMap, HeaderValue};
use ipnet::IpNet;

use super::super::ServicePort;

/// Target of a generated request: a service or a pod.
#[derive(Clone, Debug)]
pub(super) enum CallTarget {
    Service(NamespacedHostname),
    /// Pod, with the service ports that forward to the called port.
    Pod(Vec<(NamespacedHostname, u16)>),
}

/// Generated request or connection that policies evaluate.
#[derive(Clone, Debug)]
pub(super) struct GeneratedRequest {
    pub(super) is_http: bool,
    pub(super) target: CallTarget,
    pub(super) source: Option<Identity>,
    pub(super) source_ip: [u8; 4],
    pub(super) remote_ip: [u8; 4],
    pub(super) destination_ip: [u8; 4],
    pub(super) port: u16,
    pub(super) sni: Option<&'static str>,
    pub(super) method: &'static str,
    pub(super) host: &'static str,
    pub(super) path: &'static str,
    pub(super) headers: HeaderMap,
}

impl GeneratedRequest {
    /// Returns a copy of the request that calls another port.
    pub(super) fn with_port(&self, port: u16) -> Self {
        Self {
            port,
            ..self.clone()
        }
    }

    /// Returns the service ports that forward to the called pod.
    pub(super) fn ports(&self) -> impl Iterator<Item = ServicePort> {
        let all = match &self.target {
            CallTarget::Service(_) => &[][..],
            CallTarget::Pod(all) => all,
        };
        all.iter().map(|(service, port)| ServicePort {
            service: service.clone(),
            address: (self.destination_ip, *port).into(),
        })
    }

    /// Whether a policy is attached to the called service.
    pub(super) fn is_target_of(&self, policy: &HttpPolicy) -> bool {
        matches!(&self.target, CallTarget::Service(service) if policy.services.contains(service))
    }
}

/// Generator of test cases, which derives each choice from one input byte. Beyond the last byte it always takes the
/// first choice.
pub(super) struct FuzzInput<'a>(pub(super) &'a [u8]);

impl FuzzInput<'_> {
    pub(super) fn number_up_to(&mut self, limit: u8) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                first % limit
            }
            None => 0,
        }
    }

    pub(super) fn one_chance_in(&mut self, chances: u8) -> bool {
        self.number_up_to(chances) == chances - 1
    }

    fn choose_from<T: Copy + Default>(&mut self, choices: &[T]) -> T {
        let count = u8::try_from(choices.len()).unwrap_or(u8::MAX);
        let choice = self.number_up_to(count.max(1));
        choices
            .get(usize::from(choice))
            .copied()
            .unwrap_or_default()
    }

    /// Generates a short list, mostly empty, since most fields of policies are unset.
    fn list_up_to_two<T>(&mut self, make: impl Fn(&mut Self) -> T) -> Vec<T> {
        let count = match self.number_up_to(8) {
            7 => 2,
            5 | 6 => 1,
            _ => 0,
        };
        (0..count).map(|_| make(self)).collect()
    }

    fn patterns(&mut self, choices: &[&str]) -> Vec<StringMatch> {
        self.list_up_to_two(|bytes| StringMatch::from_pattern(bytes.choose_from(choices)))
    }

    fn nets(&mut self) -> Vec<IpNet> {
        self.list_up_to_two(|bytes| {
            let (last, length) = (bytes.number_up_to(4), bytes.choose_from(&[32, 0, 31]));
            IpNet::new_assert(std::net::IpAddr::from([10, 0, 0, last]), length)
        })
    }

    fn service(&mut self) -> NamespacedHostname {
        NamespacedHostname {
            namespace: "ns".into(),
            hostname: self.choose_from(&["a", "b"]).into(),
        }
    }

    pub(super) fn policy(&mut self) -> HttpPolicy {
        let action = self.number_up_to(5);
        HttpPolicy {
            key: PolicyKey::from_resource_name(
                self.choose_from(&["ns/a", "ns/b", "ns/c", "ns/d", "ns/e"]),
            ),
            for_gateway: self.number_up_to(2) == 0,
            services: self.list_up_to_two(Self::service),
            action: match action {
                0 | 1 => HttpAction::Allow,
                2 | 3 => HttpAction::Deny,
                _ => HttpAction::Audit,
            },
            dry_run: self.one_chance_in(6),
            rules: (0..self.number_up_to(3)).map(|_| self.rule()).collect(),
            not_understood: self.one_chance_in(12).then(|| "odd".into()),
            provider: None,
        }
    }

    fn rule(&mut self) -> HttpRule {
        HttpRule {
            sources: self.list_up_to_two(Self::source),
            operations: self.list_up_to_two(Self::operation),
            conditions: self.list_up_to_two(Self::condition),
        }
    }

    fn source(&mut self) -> HttpSource {
        const PRINCIPALS: &[&str] = &["td/ns/a/sa/b", "td/*", "*/sa/b", "*", "td/ns/a/sa/"];
        const WORDS: &[&str] = &["a", "b", "*", "a*", "*b"];
        let account = |bytes: &mut Self| ServiceAccountMatch {
            namespace: bytes.choose_from(&["a", "b"]).into(),
            service_account: bytes.choose_from(&["a", "b"]).into(),
        };
        HttpSource {
            principals: self.patterns(PRINCIPALS),
            not_principals: self.patterns(PRINCIPALS),
            namespaces: self.patterns(WORDS),
            not_namespaces: self.patterns(WORDS),
            service_accounts: self.list_up_to_two(account),
            not_service_accounts: self.list_up_to_two(account),
            trust_domains: self.patterns(&["td", "t*", "x"]),
            not_trust_domains: self.patterns(&["td", "x"]),
            ip_blocks: self.nets(),
            not_ip_blocks: self.nets(),
            remote_ip_blocks: self.nets(),
            not_remote_ip_blocks: self.nets(),
            request_principals: Vec::new(),
            not_request_principals: Vec::new(),
        }
    }

    fn operation(&mut self) -> HttpOperation {
        const HOSTS: &[&str] = &["a.com", "*.com", "a.*", "*", "a.com:80", "*:80", "a.com:*"];
        const METHODS: &[&str] = &["GET", "PUT", "*", "G*", "get"];
        let port = |bytes: &mut Self| bytes.choose_from(&[80, 81]);
        HttpOperation {
            hosts: self.patterns(HOSTS),
            not_hosts: self.patterns(HOSTS),
            ports: self.list_up_to_two(port),
            not_ports: self.list_up_to_two(port),
            methods: self.patterns(METHODS),
            not_methods: self.patterns(METHODS),
            paths: self.list_up_to_two(Self::path),
            not_paths: self.list_up_to_two(Self::path),
        }
    }

    fn path(&mut self) -> PathPattern {
        let text = self.choose_from(&[
            "/admin",
            "/admin/*",
            "*.css",
            "*",
            "/{*}",
            "/admin/{**}",
            "/",
            "/{*}/x",
            "/@me",
        ]);
        match PathTemplate::is_template(text) {
            true => PathPattern::Template(text.into()),
            false => PathPattern::Text(StringMatch::from_pattern(text)),
        }
    }

    fn condition(&mut self) -> HttpCondition {
        use HttpAttribute as A;
        let attribute = match self.number_up_to(5) {
            0 => A::Header("x-a".into()),
            1 => A::SourceIp,
            2 => A::DestinationPort,
            3 => A::SourceServiceAccount,
            _ => A::ConnectionSni,
        };
        let value = |bytes: &mut Self| match attribute {
            A::SourceIp => {
                let net = IpNet::new_assert([10, 0, 0, bytes.number_up_to(4)].into(), 32);
                HttpValue::Net(net)
            }
            A::DestinationPort => HttpValue::Port(bytes.choose_from(&[80, 81])),
            _ => HttpValue::Text(StringMatch::from_pattern(bytes.choose_from(&[
                "1", "1*", "*2", "*", "a/b", "a/*", "*/b", "a.com", "1,2", "*.com",
            ]))),
        };
        HttpCondition {
            values: self.list_up_to_two(value),
            not_values: self.list_up_to_two(value),
            attribute,
        }
    }

    pub(super) fn request(&mut self) -> GeneratedRequest {
        let mut headers = HeaderMap::new();
        for _ in 0..self.number_up_to(4) {
            let name = self.choose_from(&["x-a", "x-a", "x-a", "x_a"]);
            let value = self.choose_from(&["1", "2", "12", "3", "3, 1", "1,2"]);
            headers.append(name, HeaderValue::from_static(value));
        }
        if self.one_chance_in(6) {
            let path = self.choose_from(&["/admin", "/x", "/Admin/"]);
            headers.insert("x-original-url", HeaderValue::from_static(path));
        }
        if self.one_chance_in(6) {
            let method = self.choose_from(&["PUT", "put"]);
            headers.insert("x-http-method-override", HeaderValue::from_static(method));
        }
        if self.one_chance_in(6) {
            let host = self.choose_from(&["a.com", "b.com", "A.com:81"]);
            headers.insert("x-forwarded-host", HeaderValue::from_static(host));
        }
        let has_source = !self.one_chance_in(4);
        GeneratedRequest {
            is_http: !self.one_chance_in(4),
            target: match self.number_up_to(3) {
                0 => CallTarget::Pod(
                    self.list_up_to_two(|bytes| (bytes.service(), bytes.choose_from(&[80, 81]))),
                ),
                _ => CallTarget::Service(self.service()),
            },
            source: has_source.then(|| {
                Identity::new(
                    "td",
                    self.choose_from(&["a", "b"]),
                    self.choose_from(&["b", "a"]),
                )
            }),
            source_ip: [10, 0, 0, self.number_up_to(4)],
            remote_ip: [10, 0, 0, self.number_up_to(4)],
            destination_ip: [10, 0, 0, self.number_up_to(4)],
            port: self.choose_from(&[80, 81]),
            sni: self
                .one_chance_in(2)
                .then(|| self.choose_from(&["A.com", "b.com"])),
            method: self.choose_from(&["GET", "PUT", "put"]),
            host: self.choose_from(&[
                "a.com",
                "A.com:80",
                "b.com",
                "a.com.",
                "a.com.:80",
                "",
                "a.com:",
            ]),
            path: self.choose_from(&[
                "/admin",
                "//admin",
                "/admin;x",
                "/admin%2Fb",
                "/a/b.css",
                "/",
                "/%40me",
                "/admin/x",
                "/Admin/",
                "/%2561dmin",
                "/admin;x.css",
                "*",
            ]),
            headers,
        }
    }
}
