//! Tests of the tables made from a waypoint's dump.

use super::*;

/// Returns a waypoint's `/config_dump` with each kind of record.
fn dump() -> Value {
    json!({
        "workloads": [
            {"uid": "u1", "name": "web-1", "workloadIps": ["10.0.0.1"]},
            {"uid": "u2", "name": "web-2", "workloadIps": ["10.0.0.2"]},
        ],
        "services": [{
            "namespace": "shop",
            "hostname": "web.shop",
            "endpoints": {
                "u1": {"workloadUid": "u1", "port": {"80": 8080}},
                "u2": {"workloadUid": "u2", "port": {"80": 8080}, "status": "Unhealthy"},
            },
        }],
        "workloadState": {
            "services": [
                {
                    "service": "shop/web.shop",
                    "routes": [{
                        "name": "HTTPRoute/shop/canary",
                        "ports": [80],
                        "clients": null,
                        "rules": [{
                            "matches": [
                                {"path": {"prefix": "/new"}, "method": "GET", "headers": [["x-a", {"exact": "1"}]], "queryParams": []},
                                {"path": {"regex": "/v[0-9]"}, "method": null, "headers": [], "queryParams": [["q", {"regex": "b+"}]]},
                            ],
                            "filters": [{"requestHeaders": {}}],
                            "backends": [
                                {"service": {"Ok": "shop/web.shop"}, "port": 80, "weight": 9, "subset": null},
                                {"service": {"Err": "no such Service"}, "port": 80, "weight": 1, "subset": "v2"},
                            ],
                            "unsupported": null,
                        }],
                    }],
                    "tlsRoutes": [],
                    "tcpRoutes": [{
                        "name": "TCPRoute/shop/t", "ports": [], "clients": "bank", "hostnames": [],
                        "backends": [], "unsupported": "filters",
                    }],
                },
                {"service": "shop/idle.shop", "routes": [], "tlsRoutes": [], "tcpRoutes": []},
            ],
            "policies": [
                {"key": "shop/only-get", "forGateway": false, "services": ["shop/web.shop"], "action": "allow",
                 "dryRun": false, "rules": [{}, {}], "notUnderstood": null},
                {"key": "shop/odd", "forGateway": true, "services": [], "action": "deny",
                 "dryRun": true, "rules": [{}], "notUnderstood": "field 9 is unknown"},
            ],
            "destinations": [{
                "record": {"service": "shop/web.shop"},
                "ports": [{"endpoints": [{"uid": "u1", "requests": 3, "ejectedFor": "12s"}]}],
            }],
            "limits": [{
                "record": {
                    "key": "shop/l", "forGateway": true, "services": [], "dryRun": false, "notUnderstood": null,
                    "local": [{"by": ["principal", {"header": "x-a"}], "requests": 5, "per": "1s"}],
                    "global": {"place": {"Ok": ["shop/limits.shop", 8081]}, "domain": "shop"},
                },
                "countedKeys": [2, 1],
            }],
        },
    })
}

fn shown_table(section: RecordSection) -> String {
    let dump = WaypointDump::deserialize(dump()).unwrap();
    format_table(section.header(), section.rows("shop/waypoint", &dump))
}

#[test]
fn routes_are_shown_with_matches_weights_and_refusals() {
    insta::assert_snapshot!(shown_table(RecordSection::Routes));
}

#[test]
fn policies_are_shown_with_their_targets() {
    insta::assert_snapshot!(shown_table(RecordSection::Policies));
}

#[test]
fn endpoints_are_shown_with_health_and_ejections() {
    insta::assert_snapshot!(shown_table(RecordSection::Endpoints));
}

#[test]
fn limits_are_shown_with_the_keys_that_are_counted() {
    insta::assert_snapshot!(shown_table(RecordSection::Limits));
}

#[test]
fn dumps_of_other_versions_are_read_as_far_as_possible() {
    let other = json!({"workloadState": {
        "services": [{"service": "shop/web.shop", "later": {}}],
        "policies": [{"key": "shop/p", "action": "deny"}],
    }});
    let dump = WaypointDump::deserialize(other).unwrap();
    let row = |section: RecordSection| section.rows("shop/waypoint", &dump).remove(0).join(" ");
    assert!(row(RecordSection::Routes).ends_with("to its endpoints"));
    assert!(row(RecordSection::Policies).contains("shop/p DENY"));
}
