//! Configuration of Envoy: one listener terminates tunnels, an internal listener processes their requests, and another
//! internal listener opens the tunnel to the pod.
#![expect(
    clippy::indexing_slicing,
    reason = "members are set in objects that are made here"
)]

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    super::{
        authorizer,
        clusters::{cluster_of, socket_address},
        hashing, plugin,
        scenario::{RULES_PER_SERVICE, Scenario, ScenarioStep},
        tokens, tracing,
    },
    ADMIN_PORT, EnvoyFiles, ROUTES_FILE,
};

/// Access log format that is Istio's default.
const ACCESS_LOG: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
    %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% \
    \"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \
    %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \
    \"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER_RAW% \
    %UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% \
    %REQUESTED_SERVER_NAME% %ROUTE_NAME%\n";

impl EnvoyFiles {
    fn tls(&self, peers: &Value) -> Value {
        json!({
            "alpn_protocols": ["h2"],
            "tls_params": {
                "tls_minimum_protocol_version": "TLSv1_3",
                "tls_maximum_protocol_version": "TLSv1_3",
            },
            "tls_certificates": [{
                "certificate_chain": {"filename": self.path("chain.pem")},
                "private_key": {"filename": self.path("key.pem")},
            }],
            "validation_context": {
                "trusted_ca": {"filename": self.path("root.pem")},
                "match_typed_subject_alt_names": [{"san_type": "URI", "matcher": peers}],
            },
        })
    }

    /// Returns Envoy's routes as a file, whose changes Envoy follows.
    pub(super) fn routes(scenario: Scenario, mark: Option<usize>) -> Value {
        let mut hosts = vec![
            json!({
                "name": "http2", "domains": ["*:81"], "routes": scenario.routes(8081),
            }),
            json!({
                "name": "grpc", "domains": ["*:82"], "routes": scenario.routes(8082),
            }),
        ];
        for n in 0..scenario.services {
            let name = format!("many-{n}");
            let many = Scenario {
                rules: RULES_PER_SERVICE,
                ..Scenario::default()
            };
            hosts.push(json!({"name": name, "domains": [name], "routes": many.routes(8080)}));
        }
        let mut http = json!({"name": "http", "domains": ["*"], "routes": scenario.routes(8080)});
        if let Some(mark) = mark {
            http["response_headers_to_add"] = json!([{
                "header": {"key": "x-mark", "value": mark.to_string()},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }]);
        }
        hosts.push(http);
        json!({"resources": [{
            "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            "name": "requests",
            "virtual_hosts": hosts,
        }]})
    }

    pub(super) fn configuration(
        &self,
        scenario: Scenario,
        backend: &str,
        callee: Option<&str>,
    ) -> Result<Value> {
        let tunnels = json!({
            "name": "tunnels",
            "address": socket_address("0.0.0.0", 15008),
            "filter_chains": [{
                "filters": [connection_manager("tunnels", json!({
                    "http2_protocol_options": {"allow_connect": true},
                    "upgrade_configs": [{"upgrade_type": "CONNECT"}],
                    "http_filters": [router()],
                    "route_config": {"virtual_hosts": [{
                        "name": "tunnels",
                        "domains": ["*"],
                        "routes": [{
                            "match": {"connect_matcher": {}},
                            "route": {
                                "cluster": "requests",
                                "timeout": "0s",
                                "upgrade_configs":
                                    [{"upgrade_type": "CONNECT", "connect_config": {}}],
                            },
                        }],
                    }]},
                }))],
                "transport_socket": typed_config("envoy.transport_sockets.tls",
                    "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext", json!({
                        "require_client_certificate": true,
                        "common_tls_context": self.tls(&json!({"prefix": "spiffe://"})),
                    })),
            }],
        });
        let log = typed_config(
            "log",
            "envoy.extensions.access_loggers.file.v3.FileAccessLog",
            json!({
                "path": "/dev/stdout",
                "log_format": {"text_format_source": {"inline_string": ACCESS_LOG}},
            }),
        );
        let mut filters = vec![scenario.policies(), router()];
        if let Some(step) = scenario.step {
            filters.splice(0..0, self.http_filter(step)?);
        }
        let mut manager = json!({
            "access_log": [log],
            "normalize_path": true,
            "use_remote_address": false,
            "http_filters": filters,
            "rds": {"route_config_name": "requests", "config_source": {
                "resource_api_version": "V3",
                "path_config_source": {"path": self.path(ROUTES_FILE)},
            }},
        });
        if let Some(ScenarioStep::Trace(percentage)) = scenario.step {
            manager["tracing"] = tracing::tracer(percentage);
        }
        let requests = json!({
            "name": "requests",
            "internal_listener": {},
            "filter_chains": [{"filters": [connection_manager("requests", manager)]}],
        });
        let mut clusters = vec![
            internal_listener_cluster("requests", "requests"),
            backend_cluster(8080),
            backend_cluster(8081),
            backend_cluster(8082),
            self.hbone(backend),
        ];
        clusters.extend(scenario.callee_cluster_of_step(callee));
        let ready = json!({
            "name": "ready",
            "address": socket_address("0.0.0.0", 15021),
            "filter_chains": [{"filters": [connection_manager("ready", json!({
                "http_filters": [router()],
                "route_config": {"virtual_hosts": [{
                    "name": "ready",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "direct_response": {"status": 200}}],
                }]},
            }))]}],
        });
        Ok(json!({
            "admin": {"address": socket_address("127.0.0.1", ADMIN_PORT)},
            // Wanted of whoever follows a file.
            "node": {"id": "waypoint", "cluster": "waypoint"},
            "bootstrap_extensions": [typed_config("envoy.bootstrap.internal_listener",
                "envoy.extensions.bootstrap.internal_listener.v3.InternalListener", json!({}))],
            "static_resources": {
                "listeners": [tunnels, requests, tunnel_cluster(backend, 8080), tunnel_cluster(backend, 8081),
                    tunnel_cluster(backend, 8082), ready],
                "clusters": clusters,
            },
        }))
    }

    /// Returns the HTTP filter for the step, if it needs one.
    fn http_filter(&self, step: ScenarioStep) -> Result<Option<Value>> {
        Ok(match step {
            ScenarioStep::Token(_) => Some(typed_config(
                "envoy.filters.http.jwt_authn",
                "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
                tokens::jwt_filter()?,
            )),
            ScenarioStep::Authorize => Some(typed_config(
                "envoy.filters.http.ext_authz",
                "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz",
                authorizer::ext_authz(),
            )),
            ScenarioStep::Plugin => Some(typed_config(
                "envoy.filters.http.wasm",
                "envoy.extensions.filters.http.wasm.v3.Wasm",
                plugin::envoy_filter(&self.directory),
            )),
            ScenarioStep::Trace(_) | ScenarioStep::Hash => None,
        })
    }

    /// Returns the cluster of the HBONE port of the backend pod's node proxy.
    fn hbone(&self, backend: &str) -> Value {
        let server = json!({"exact": "spiffe://cluster.local/ns/envoy/sa/server"});
        let mut cluster = cluster("hbone", &socket_address(backend, 15008));
        cluster["typed_extension_protocol_options"] =
            http_protocol_options(&json!({"explicit_http_config": {"http2_protocol_options": {}}}));
        cluster["transport_socket"] = typed_config(
            "envoy.transport_sockets.tls",
            "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            json!({"common_tls_context": self.tls(&server)}),
        );
        cluster
    }
}

impl Scenario {
    /// Returns the cluster of the server that the step calls, if any.
    fn callee_cluster_of_step(self, address: Option<&str>) -> Option<Value> {
        let (name, port) = match self.step? {
            ScenarioStep::Trace(_) => (tracing::NAMESPACED_NAME.1, tracing::PORT),
            ScenarioStep::Authorize => (authorizer::NAMESPACED_NAME.1, authorizer::PORT),
            ScenarioStep::Hash => return Some(hashing::cluster()),
            ScenarioStep::Token(_) | ScenarioStep::Plugin => return None,
        };
        Some(callee_cluster(name, address?, port))
    }

    /// Returns the RBAC policies that correspond to the AuthorizationPolicies.
    fn policies(self) -> Value {
        let policies: serde_json::Map<String, Value> = (0..self.policies)
            .map(|n| {
                let path = json!({"url_path": {"path": {"exact": format!("/denied/{n}")}}});
                let method = json!({"header": {
                    "name": ":method", "string_match": {"exact": "POST"},
                }});
                let policy = json!({
                    "principals": [{"any": true}],
                    "permissions": [{"and_rules": {"rules": [path, method]}}],
                });
                (format!("policy-{n}"), policy)
            })
            .collect();
        typed_config(
            "envoy.filters.http.rbac",
            "envoy.extensions.filters.http.rbac.v3.RBAC",
            json!({"rules": {"action": "DENY", "policies": policies}}),
        )
    }

    /// Returns the routes that correspond to the HTTPRoutes.
    fn routes(self, port: u16) -> Vec<Value> {
        let to = match self.step {
            Some(ScenarioStep::Hash) => hashing::route_action(),
            _ => json!({"cluster": format!("backend-{port}"), "timeout": "0s"}),
        };
        let mut routes: Vec<Value> = (0..self.rules)
            .map(
                |n| json!({"match": {"path_separated_prefix": format!("/route/{n}")}, "route": to}),
            )
            .collect();
        routes.push(json!({"match": {"prefix": "/"}, "route": to}));
        routes
    }
}

fn typed_config(name: &str, of: &str, mut fields: Value) -> Value {
    fields["@type"] = format!("type.googleapis.com/{of}").into();
    json!({"name": name, "typed_config": fields})
}

fn router() -> Value {
    let router = "envoy.extensions.filters.http.router.v3.Router";
    typed_config("envoy.filters.http.router", router, json!({}))
}

fn connection_manager(name: &str, mut fields: Value) -> Value {
    fields["stat_prefix"] = name.into();
    typed_config(
        "envoy.filters.network.http_connection_manager",
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        fields,
    )
}

fn http_protocol_options(options: &Value) -> Value {
    let mut options = options.clone();
    options["@type"] =
        "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions".into();
    json!({"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options})
}

fn cluster(name: &str, address: &Value) -> Value {
    cluster_of(name, std::slice::from_ref(address))
}

/// Returns a cluster of a server that is called over gRPC.
fn callee_cluster(name: &str, address: &str, port: u16) -> Value {
    let mut cluster = cluster(name, &socket_address(address, port));
    cluster["typed_extension_protocol_options"] =
        http_protocol_options(&json!({"explicit_http_config": {"http2_protocol_options": {}}}));
    cluster
}

/// Returns a cluster whose endpoint is one of Envoy's internal listeners.
fn internal_listener_cluster(name: &str, listener: &str) -> Value {
    let address = json!({"envoy_internal_address": {"server_listener_name": listener}});
    let mut cluster = cluster(name, &address);
    let raw = typed_config(
        "envoy.transport_sockets.raw_buffer",
        "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer",
        json!({}),
    );
    cluster["transport_socket"] = typed_config(
        "envoy.transport_sockets.internal_upstream",
        "envoy.extensions.transport_sockets.internal_upstream.v3.InternalUpstreamTransport",
        json!({"transport_socket": raw}),
    );
    cluster
}

/// Returns a cluster that opens tunnels to a port of the pod.
fn tunnel_cluster(backend: &str, port: u16) -> Value {
    let proxy = json!({
        "stat_prefix": "tunnel",
        "cluster": "hbone",
        "tunneling_config": {"hostname": format!("{backend}:{port}")},
    });
    let proxy_type = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
    json!({
        "name": format!("tunnel-{port}"),
        "internal_listener": {},
        "filter_chains": [{"filters": [typed_config("tcp", proxy_type, proxy)]}],
    })
}

/// Returns a cluster for a port of the pod, which uses the HTTP version of the downstream request.
fn backend_cluster(port: u16) -> Value {
    let mut backends =
        internal_listener_cluster(&format!("backend-{port}"), &format!("tunnel-{port}"));
    backends["typed_extension_protocol_options"] = http_protocol_options(&json!({
        "use_downstream_protocol_config":
            {"http_protocol_options": {}, "http2_protocol_options": {}},
    }));
    backends
}
